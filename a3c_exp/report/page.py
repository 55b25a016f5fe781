"""One HTML page that holds everything of a report and needs no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

# The policy forbids the page everything that it does not bring along.
HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1.5rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid #d9d9d9; padding: 0.3rem 0.5rem; text-align: right; }}
th:nth-child(2), td:nth-child(2) {{ text-align: left; min-width: 10rem; }}
img {{ height: auto; max-width: 100%; }}
figure {{ margin: 1.5rem 0; }}
figcaption {{ font-size: 0.9rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
"""


@dataclass(slots=True)
class Page:
    """An HTML page in the making. Every text that it is given is escaped."""

    title: str
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def paragraphs(self, *texts: str) -> None:
        self.parts += [f"<p>{escape(text)}</p>" for text in texts]

    def table(self, rows: Sequence[Mapping[str, str]]) -> None:
        """rows: cells by column, at least one."""
        head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
        lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row.values())}</tr>\n" for row in rows)
        self.parts.append(f'<div class="wide"><table>\n<tr>{head}</tr>\n{lines}</table></div>')

    def picture(self, png: bytes, text: str, caption: str) -> None:
        """text: in place of the picture, for readers who cannot see it."""
        source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        image = f'<img alt="{escape(text)}" src="{source}">'
        self.parts.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")

    def html(self) -> str:
        return HEAD.format(title=escape(self.title)) + "\n".join(self.parts) + "\n</body>\n</html>\n"
