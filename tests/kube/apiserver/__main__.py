"""`python -m tests.kube.apiserver build`: build kube-apiserver, etcd, kube-scheduler, Helm's engine
and the controllers that tests need into the cache. It needs no Python package, so a new machine can
build while its environment is made."""

import sys

from metrics.benches.apiserver import ServerUnavailable, controllers, helm, programs, scheduler


def main(arguments: list[str]) -> int:
    if arguments != ["build"]:
        print("usage: python -m tests.kube.apiserver build", file=sys.stderr)
        return 2
    try:
        programs()
        controllers()
        scheduler()
        helm()
    except ServerUnavailable as error:
        print(f"Tests on a real kube-apiserver are left out: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
