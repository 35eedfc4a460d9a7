"""Compile the planner's C library into the package, if there is a C compiler; without one, the planner flies in NumPy."""

import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "src"))

from fledge_runtime import native

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70
    from wheel.bdist_wheel import bdist_wheel


class BuildWithLibrary(build_py):
    """Build the package and, if possible, the library."""

    def run(self):
        super().run()
        editable = getattr(self, "editable_mode", False)
        target = (native.FOLDER if editable else Path(self.build_lib, "fledge_runtime", "native")) / native.LIBRARY
        if target.exists():
            target.unlink()
        try:
            native.build(target)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"warning: the planner's C library was not built ({error}); the planner will fly in NumPy, slower.")


class WheelForAnyPython(bdist_wheel):
    """A wheel for every Python on this platform; without the library, for every platform."""

    def get_tag(self):
        built = any(Path(self.bdist_dir).rglob(native.LIBRARY))
        return ("py3", "none", super().get_tag()[2] if built else "any")


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=WithLibrary, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelForAnyPython})
