"""`python -m cyclegrpo`: the command line, also under `torchrun -m cyclegrpo`."""

from cyclegrpo.cli import main

if __name__ == "__main__":
    main()
