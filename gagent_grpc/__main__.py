"""`python -m gagent_grpc` is the command `gagent`."""

from gagent_grpc.cli.main import main

if __name__ == "__main__":
    main()
