"""Draws the picture in the README from real output, with the `flowline` on PATH:

    python3 docs/images/terminal.py >docs/images/terminal.svg
"""

import html, os, re, subprocess, sys, tempfile, time

FLOW = """\
flow: order
steps:
  charge: { command: [sh, -c, "sleep 0.5"], returns: order.charged }
  reserve: { command: [sh, -c, "sleep 0.1"], returns: stock.reserved }
  ship: { subscribes: [order.charged, stock.reserved], command: [sh, -c, "sleep 0.2"], returns: order.shipped }
"""
COLOURS = {"1": "#f0f6fc", "2": "#8b949e", "31": "#ff7b72", "32": "#3fb950", "33": "#d29922", "36": "#39c5cf"}
LINE, CHARACTER, MARGIN = 20, 7.83, 18


def play(folder):
    """A run that is killed while it charges, and continued."""
    environment = os.environ | {"FLOWLINE_COLOR": "always"}
    run = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    killed = subprocess.Popen(["flowline", "run", "order.yaml"], **run)
    time.sleep(0.4)
    killed.kill()
    shown = ["\x1b[1m$ flowline run order.yaml\x1b[0m", *killed.communicate()[0].splitlines()]
    time.sleep(0.5)  # until the step's program is gone too
    continued = subprocess.run(["flowline", "work", "--until-idle"], **run)
    return [*shown, "\x1b[31mKilled\x1b[0m  \x1b[2m# with kill -9, while charge was running\x1b[0m", "\x1b[1m$ flowline work --until-idle\x1b[0m", *continued.stdout.splitlines()]


def coloured(line):
    """The line as spans: `ESC[NUMBERm` opens a colour, and `ESC[0m` ends it."""
    spans = []
    for colour, text in re.findall(r"(?:\x1b\[(\d+)m)?([^\x1b]*)", line):
        if not text:
            continue
        fill = f' fill="{COLOURS[colour]}"' if colour in COLOURS else ""
        spans.append(f"<tspan{fill}>{html.escape(text)}</tspan>")
    return "".join(spans)


with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "order.yaml"), "w") as file:
        file.write(FLOW)
    lines = play(folder)
longest = max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in lines)
width, height = round(longest * CHARACTER + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
out = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
    f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
    '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" fill="#c9d1d9">',
    *(
        f'<text x="{MARGIN}" y="{MARGIN + LINE * at + 14}" xml:space="preserve">{coloured(line)}</text>'
        for at, line in enumerate(lines)
    ),
    "</g>",
    "</svg>",
]
sys.stdout.write("\n".join(out) + "\n")
