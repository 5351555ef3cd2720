"""`python -m pipelines` is `bertrelay`, for launchers that start modules."""

from pipelines.cli import main

if __name__ == "__main__":
    main()
