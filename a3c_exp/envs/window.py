"""A window on the screen for pictures of an environment."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray


class WindowError(Exception):
    """No window can be opened. The message is the reason, in a line."""


class Window:
    """Shows pictures at their rate. Closing it is Ctrl-C.

    size: width and height. Raises WindowError without pygame or without a display.
    """

    def __init__(self, title: str, size: tuple[int, int], frames_per_second: float) -> None:
        self._pygame = _pygame()
        self._rate = frames_per_second
        display = self._pygame.display
        try:
            display.init()
            # SDL draws in memory where it finds no display. Whoever wants that says so.
            if display.get_driver() == "offscreen" and "SDL_VIDEODRIVER" not in os.environ:
                display.quit()
                raise WindowError("no display was found")
            display.set_caption(title)
            self._screen = display.set_mode(size)
        except self._pygame.error as error:
            display.quit()
            raise WindowError(f"no display can be used: {error}") from error
        self._clock = self._pygame.time.Clock()

    def show(self, picture: NDArray[np.uint8]) -> None:
        """Draw a picture [height, width, 3], once the last one has had its time."""
        pygame = self._pygame
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                raise KeyboardInterrupt
        self._screen.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.display.flip()
        self._clock.tick(self._rate)

    def close(self) -> None:
        """Close the window. Closing twice is harmless."""
        self._pygame.display.quit()


def _pygame() -> Any:
    """The module pygame, imported without its greeting."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        return importlib.import_module("pygame")
    except ImportError as error:
        raise WindowError("needs a package that is not installed: pip install 'gymnasium[classic-control]'") from error
