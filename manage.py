#!/usr/bin/env python
"""Django's command-line utility for Kant."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kant.settings")
    from kant.commands import Commands

    Commands(sys.argv).execute()


if __name__ == "__main__":
    main()
