"""`python -m tests.kube.apiserver build`: build kube-apiserver and etcd into the cache."""

import sys

from metrics.benches.apiserver import ServerUnavailable, programs


def main(arguments: list[str]) -> int:
    if arguments != ["build"]:
        print("usage: python -m tests.kube.apiserver build", file=sys.stderr)
        return 2
    try:
        for path in programs().values():
            print(path)
    except ServerUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
