"""How the wheel is made: Kant's packages, the files they read, and the core as machine code.

`make wheel` and the first stage of the image run it (docs/decisions/0093). Name and version stand
in pyproject.toml.
"""

import shutil
import sys
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))  # who builds wheels does not

from scheduling import compile_core, compiled

APPS = ("kant", "tenants", "scheduling", "metrics", "webhooks")
# They stand at the root of a checkout, and beside the settings in a wheel.
SHARED = ("templates", "static")


class Modules(build_py):
    """Copies them to an empty folder: a wheel has no module that was deleted since the last one."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class Core(build_ext):
    """Copies the compiled core into the wheel, and compiles it before if nobody has."""

    def run(self) -> None:
        where = compiled.folder()
        compile_core.ensure(where, beside=False)
        if not where.is_dir():
            raise SystemExit("There is no wheel without a compiled core.")
        inside = compiled.SHIPPED.relative_to(compiled.ROOT)
        shutil.copytree(where, Path(self.build_lib) / inside / where.name)


class WithCore(Distribution):
    """A distribution for one version of Python and one kind of machine."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=WithCore,
    cmdclass={"build_py": Modules, "build_ext": Core},
    packages=[
        *find_packages(include=[pattern for app in APPS for pattern in (app, f"{app}.*")]),
        *(f"kant.{name}" for name in SHARED),
    ],
    package_dir={f"kant.{name}": name for name in SHARED},
    package_data={"": ["*.yaml"], **{f"kant.{name}": ["**/*"] for name in SHARED}},
    include_package_data=False,
    py_modules=["manage"],
)
