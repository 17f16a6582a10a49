#!/usr/bin/env python
"""Django's command-line utility for Kant."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kant.settings")
    from django.core.exceptions import ImproperlyConfigured

    from kant.commands import Commands

    try:
        Commands(sys.argv).execute()
    except ImproperlyConfigured as error:  # of settings; each line is for who set them
        sys.exit(f"Kant cannot start: {error}")


if __name__ == "__main__":
    main()
