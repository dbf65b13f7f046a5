"""Build rccl_py; every setting that is not about packaging lives in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["rccl_py", "rccl_py.*"]), "rccl_py.machines"],
    # The machines are a top-level folder for people and a data package for the wheel.
    package_dir={"rccl_py.machines": "topologies"},
    package_data={"rccl_py": ["py.typed"], "rccl_py.machines": ["*.yaml"]},
)
