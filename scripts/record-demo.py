#!/usr/bin/env python3
"""Records `kvplane demo` on a terminal, as an asciicast and as an animated SVG: scripts/record-demo.py BINARY DIRECTORY.

The demo runs in tmux; its screen is read twice a second. Nothing leaves this machine. Needs tmux and Python's standard library.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 100, 30
EVERY = 0.5
# How long the last screen stays before the animation begins again.
LAST = 5.0
CELL = (8.4, 17)
COLOURS = ["#0b1110", "#f87171", "#34d399", "#fbbf24", "#60a5fa", "#c084fc", "#22d3ee", "#d1d5db"]
BRIGHT = ["#6b7280", "#fca5a5", "#6ee7b7", "#fde68a", "#93c5fd", "#e9d5ff", "#67e8f9", "#ffffff"]
PAPER, INK = "#0b1110", "#d1d5db"


def record(binary, seconds):
    """Screens with the time since the beginning, each that differs from the one before."""
    with tempfile.TemporaryDirectory(prefix="kvplane-record-") as directory:
        tmux = [shutil.which("tmux") or sys.exit("record-demo: tmux is missing"), "-u", "-S", f"{directory}/tmux"]
        ended = Path(directory) / "ended"
        script = f"clear; {binary} demo --seconds {seconds}; touch {ended}; sleep 100"
        subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", "-x", str(WIDTH), "-y", str(HEIGHT), "sh", "-c", script], check=True)
        try:
            frames, began, last_look = [], time.monotonic(), False
            while True:
                screen = subprocess.run([*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True).stdout
                lines = screen.split("\n")[:HEIGHT]
                if any(line.strip() for line in lines) and (not frames or frames[-1][1] != lines):
                    frames.append((time.monotonic() - began, lines))
                if last_look:
                    return frames
                last_look = ended.exists()
                time.sleep(EVERY)
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)


def asciicast(frames):
    """Version 2: a header, and an event for each screen."""
    header = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": "kvplane demo"}
    rows = [json.dumps(header)]
    for at, lines in frames:
        rows.append(json.dumps([round(at, 3), "o", "\x1b[H\x1b[2J" + "\r\n".join(lines)], ensure_ascii=False))
    return "\n".join(rows) + "\n"


def runs(line):
    """Pieces of a line with one look: (column, text, ink, paper, bold)."""
    ink, paper, bold, reverse, column, found = None, None, False, False, 0, []
    for sequence, text in re.findall(r"\x1b\[([\d;]*)m|([^\x1b]+)", line):
        if text:
            colours = (paper or PAPER, ink or INK) if reverse else (ink or INK, paper)
            found.append((column, text, *colours, bold))
            column += len(text)
            continue
        codes = [int(code or 0) for code in sequence.split(";")]
        while codes:
            code = codes.pop(0)
            if code == 0:
                ink, paper, bold, reverse = None, None, False, False
            elif code == 1:
                bold = True
            elif code in (7, 27):
                reverse = code == 7
            elif code in (22,):
                bold = False
            elif 30 <= code <= 37:
                ink = COLOURS[code - 30]
            elif 90 <= code <= 97:
                ink = BRIGHT[code - 90]
            elif code == 39:
                ink = None
            elif 40 <= code <= 47:
                paper = COLOURS[code - 40]
            elif 100 <= code <= 107:
                paper = BRIGHT[code - 100]
            elif code == 49:
                paper = None
            elif code in (38, 48):
                # Indexed colours: the first sixteen are those above.
                kind = codes.pop(0) if codes else 0
                number = codes.pop(0) if kind == 5 and codes else 7
                chosen = (COLOURS + BRIGHT)[number] if number < 16 else INK
                ink, paper = (chosen, paper) if code == 38 else (ink, chosen)
    return found


def drawn(line):
    """A line at the top of the picture."""
    parts = []
    for column, text, ink, paper, bold in runs(line):
        x, width = column * CELL[0], len(text) * CELL[0]
        if paper:
            parts.append(f'<rect x="{x:.1f}" width="{width:.1f}" height="{CELL[1]}" fill="{paper}"/>')
        if text.strip():
            weight = ' font-weight="700"' if bold else ""
            parts.append(f'<text x="{x:.1f}" y="13" textLength="{width:.1f}" fill="{ink}"{weight} xml:space="preserve">{escape(text)}</text>')
    return "".join(parts)


def svg(frames):
    """Every different line once, and a group for each screen that is shown in its time."""
    total = frames[-1][0] + LAST
    ids, groups, style = {}, [], []
    for at, (begins, lines) in enumerate(frames):
        ends = frames[at + 1][0] if at + 1 < len(frames) else total
        uses = []
        for row, line in enumerate(lines):
            if drawn(line):
                name = ids.setdefault(line, f"l{len(ids)}")
                uses.append(f'<use href="#{name}" y="{row * CELL[1]}"/>')
        start, end = (0 if at == 0 else 100 * begins / total), 100 * ends / total
        style.append(f"@keyframes f{at}{{0%{{opacity:{1 if at == 0 else 0}}}{start:.3f}%{{opacity:1}}{end:.3f}%{{opacity:0}}100%{{opacity:0}}}}#f{at}{{animation:f{at} {total:.1f}s step-end infinite}}")
        groups.append(f'<g id="f{at}" opacity="{1 if at + 1 == len(frames) else 0}">{"".join(uses)}</g>')
    width, height = WIDTH * CELL[0] + 20, HEIGHT * CELL[1] + 20
    lines = "".join(f'<g id="{name}">{drawn(line)}</g>' for line, name in ids.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="14">'
        f"<title>kvplane demo: three fleets under the same load</title><style>{''.join(style)}</style><defs>{lines}</defs>"
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/><g transform="translate(10 10)">{"".join(groups)}</g></svg>\n'
    )


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("binary", type=Path)
    words.add_argument("directory", type=Path)
    words.add_argument("--seconds", type=int, default=30)
    given = words.parse_args()
    frames = record(given.binary.resolve(), given.seconds)
    (given.directory / "demo.cast").write_text(asciicast(frames))
    (given.directory / "demo.svg").write_text(svg(frames))
    print(f"{len(frames)} screens over {frames[-1][0]:.0f} s")


if __name__ == "__main__":
    main()
