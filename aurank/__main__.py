"""``python -m aurank`` is the ``aurank`` command."""

import sys


def main() -> None:
    """Run the command line; without the libraries that it is made of, say how to get them."""
    try:
        from aurank.lazy import imported
        from aurank.sizes import keep_memory

        keep_memory()
        run = imported("aurank.cli:main")
    except ModuleNotFoundError as error:
        if error.__cause__ is None:  # no library of an extra
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
