from typing import Any

import gymnasium


class Success(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Whether the pole still stood at the end of an episode, and how far off the cart was."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        cartpole: Any = self.env.unwrapped
        numbers = {"is_success": not terminated, "distance": abs(float(cartpole.state[0]))}
        return observation, reward, terminated, truncated, {**info, **numbers}
