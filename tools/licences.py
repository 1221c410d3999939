"""Lists the licence of every package that is installed here, as its metadata states it.

python tools/licences.py             a line for each package
python tools/licences.py --summary   how many packages have which licence
"""

import re
import sys
from collections import Counter
from importlib.metadata import Distribution, distributions


def licence(package: Distribution) -> str:
    """The licence in a few words: the expression, else the classifiers, else the field."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return str(expression)
    classifiers = [c for c in about.get_all("Classifier") or () if c.startswith("License ::")]
    named = [c.rpartition("::")[2].strip() for c in classifiers if c.count("::") > 1]
    if named:
        return ", ".join(sorted(set(named)))
    first = str(about.get("License") or "").strip().splitlines()
    return first[0][:80] if first else "not stated"


def rows() -> list[tuple[str, str, str]]:
    """Name, version and licence of each package, by name."""
    found = {
        re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower(): package
        for package in distributions()
        if package.metadata["Name"]
    }
    return [(name, package.version, licence(package)) for name, package in sorted(found.items())]


def main() -> None:
    """Prints the list."""
    found = rows()
    if "--summary" in sys.argv[1:]:
        for name, count in Counter(words for _, _, words in found).most_common():
            print(f"{count:4} {name}")
        return
    width = max(len(f"{name} {version}") for name, version, _ in found)
    for name, version, words in found:
        print(f"{f'{name} {version}':{width}}  {words}")


if __name__ == "__main__":
    main()
