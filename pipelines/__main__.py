"""`python -P -m pipelines` is `bertrelay`. Without -P, Python takes a folder `pipelines` of the working directory."""

from pipelines.cli import main

if __name__ == "__main__":
    main()
