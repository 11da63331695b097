"""``python -m aurank`` is the ``aurank`` command."""

import sys


def main() -> None:
    """Run the command line; without the libraries that it is made of, say how to get them."""
    try:
        from aurank.allocator import keep_memory

        keep_memory()
        from aurank.cli import main as run
    except KeyboardInterrupt:  # before there is a command to say so
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:
        from aurank.extras import missing_library

        if (text := missing_library(error)) is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
