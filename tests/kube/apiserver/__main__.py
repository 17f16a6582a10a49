"""`python -m tests.kube.apiserver build [controllers]`: build kube-apiserver and etcd, and on
request kube-controller-manager, into the cache."""

import sys

from metrics.benches.apiserver import ServerUnavailable, controllers, programs


def main(arguments: list[str]) -> int:
    if arguments not in (["build"], ["build", "controllers"]):
        print("usage: python -m tests.kube.apiserver build [controllers]", file=sys.stderr)
        return 2
    try:
        programs()
        if "controllers" in arguments:
            controllers()
    except ServerUnavailable as error:
        print(f"Tests on a real kube-apiserver are left out: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
