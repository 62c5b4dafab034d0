"""`python -m memsim`."""

from memsim.cli import main

if __name__ == "__main__":
    main()
