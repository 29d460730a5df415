"""What a page shows against what really comes: `shown.py hold SHOWN CAME`; for requests `shown.py fill SHOWN`, `shown.py means TEXT VALUE`.

JSON must have the same keys, and lists the same length; where the page leaves something out (`, …`) there may be more keys. A `…` within a text
stands for anything, with the letters and digits before it, which are a sample. Dates, ids and long numbers are compared by their shape alone, all else exactly. What a text with `…` stood for is
remembered, and `fill` puts it back where a request shows the same text.
"""

import json
import re
import sys
from pathlib import Path

MEMORY = Path(".shown.json")
SHAPES = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "DATE"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID"),
    (r"\b[0-9a-f]{16,}\b", "HEX"),
    (r"\d{13}", "MS"),
]


def shape(text):
    for pattern, name in SHAPES:
        text = re.sub(pattern, name, text)
    return text


def pattern(text):
    return ".*".join(re.escape(part) for part in re.split("[0-9A-Za-z-]*…", text))


class Page:
    def __init__(self, partial):
        self.partial = partial
        self.meant = json.loads(MEMORY.read_text()) if MEMORY.exists() else {}

    def hold(self, shown, came, place):
        if type(shown) is not type(came):
            sys.exit(f"{place}: shown {shown!r}, came {came!r}")
        if isinstance(shown, dict):
            missing, more = shown.keys() - came.keys(), came.keys() - shown.keys()
            if missing or more and not self.partial:
                sys.exit(f"{place}: missing {sorted(missing)}, not shown {sorted(more)}, in {came}")
            for key in shown:
                self.hold(shown[key], came[key], f"{place}/{key}")
        elif isinstance(shown, list):
            if len(shown) != len(came):
                sys.exit(f"{place}: shown {shown}, came {came}")
            for at, pair in enumerate(zip(shown, came)):
                self.hold(*pair, f"{place}/{at}")
        elif isinstance(shown, str) and "…" in shown:
            if not re.fullmatch(pattern(shown), came, re.DOTALL):
                sys.exit(f"{place}: shown {shown!r}, came {came!r}")
            self.meant[shown] = came
        else:
            # What is left of a time has begun to run.
            left = place.endswith("/remainingMs") and 0.9 * shown < came <= shown
            if not left and shape(str(shown)) != shape(str(came)):
                sys.exit(f"{place}: shown {shown!r}, came {came!r}")


def lines(shown, came):
    """Output for people: numbers differ, and `…` is anything."""
    text = re.sub(r"\d+", lambda _: r"\d+", pattern(shown.strip()))
    if not re.fullmatch(text, came.strip(), re.DOTALL):
        sys.exit(f"shown:\n{shown}\ncame:\n{came}")


def remember(meant):
    MEMORY.write_text(json.dumps(meant))


verb = sys.argv[1]
shown = "" if verb == "means" else Path(sys.argv[2]).read_text()
if verb == "means":
    remember(Page(False).meant | {sys.argv[2]: sys.argv[3]})
elif verb == "fill":
    for text, meant in Page(False).meant.items():
        shown = shown.replace(f'"{text}"', json.dumps(meant))
    if "…" in shown:
        sys.exit(f"nothing on the page says what stands for … in {shown}")
    print(shown)
elif sys.argv[2].endswith(".json"):
    page = Page(", …" in shown)
    page.hold(json.loads(shown.replace(", …", "")), json.loads(Path(sys.argv[3]).read_text()), "")
    remember(page.meant)
else:
    lines(shown, Path(sys.argv[3]).read_text())
