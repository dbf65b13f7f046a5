"""Build rccl_py; every setting that is not about packaging lives in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py


class BuildWithMachines(build_py):
    """Put topologies/, a top-level folder for people, into the wheel as rccl_py/machines/.

    An editable install reads the folder where it lies.
    """

    def run(self):
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "rccl_py", "machines")
            target.mkdir(parents=True, exist_ok=True)
            for machine in sorted(Path("topologies").glob("*.yaml")):
                shutil.copy(machine, target)


setup(
    packages=find_packages(include=["rccl_py", "rccl_py.*"]),
    package_data={"rccl_py": ["py.typed", "report/bands.csv", "planner/policies/*.json"]},
    cmdclass={"build_py": BuildWithMachines},
)
