"""The build backend: maturin, plus what one extension module cannot hold.

A wheel of `upwash` also has the program `upwash`, as a script, and, where `mpicc` is found, a second extension module for
MPI. Both are built here by cargo before maturin packs the wheel. `pip install -C profile=dev ./python` builds quickly and
runs slowly.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import maturin
from maturin import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

HERE = Path(__file__).resolve().parent
# In a source distribution, the workspace is here.
WORKSPACE = HERE if (HERE / "Cargo.toml").is_file() else HERE.parent
SCRIPTS = HERE / "data" / "scripts"
EXTENSION = {"PYO3_BUILD_EXTENSION_MODULE": "1"}
MPI_MODULE = HERE / "src" / "upwash" / "_upwash_mpi.abi3.so"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, without_profile(config_settings)[1])


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_editable(metadata_directory, without_profile(config_settings)[1])


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    profile, settings = without_profile(config_settings)
    build_program(profile or "release")
    build_mpi_module(profile or "release")
    settings["build-args"] = f"--profile {profile or 'release'} {settings.get('build-args', '')}".strip()
    return maturin.build_wheel(wheel_directory, settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    profile, settings = without_profile(config_settings)
    build_program(profile or "dev")
    build_mpi_module(profile or "dev")
    settings["build-args"] = f"--profile {profile or 'dev'} {settings.get('build-args', '')}".strip()
    return maturin.build_editable(wheel_directory, settings, metadata_directory)


def without_profile(config_settings):
    """Cargo's profile, which is a setting of this backend, and the settings of maturin."""
    settings = dict(config_settings or {})
    return settings.pop("profile", None), settings


def cargo(*arguments, environment=None):
    """Runs cargo in the workspace."""
    command = [os.environ.get("CARGO", "cargo"), *arguments]
    subprocess.run(command, cwd=WORKSPACE, env={**os.environ, **(environment or {})}, check=True)


def built(profile, name):
    """The path of something that cargo has built."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", WORKSPACE / "target")) / os.environ.get("CARGO_BUILD_TARGET", "")
    return target / {"dev": "debug"}.get(profile, profile) / name


def strip(path):
    """Removes debug information, where there is a tool for it. maturin does so for its own module."""
    if shutil.which("strip"):
        subprocess.run(["strip", "-x" if sys.platform == "darwin" else "--strip-unneeded", path], check=False)


def build_program(profile):
    """Builds the program `upwash`, which becomes a script of the wheel."""
    # With the extension module, so that both are built with the same dependencies.
    packages = ["--package", "upwash-cli", "--package", "upwash-python"]
    cargo("build", "--locked", *packages, "--bin", "upwash", "--lib", "--profile", profile, environment=EXTENSION)
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    name = "upwash.exe" if sys.platform == "win32" else "upwash"
    shutil.copy2(built(profile, name), SCRIPTS / name)
    strip(SCRIPTS / name)


def build_mpi_module(profile):
    """Builds the extension module for MPI if there is a compiler for it. `UPWASH_MPI=0` leaves it out."""
    MPI_MODULE.unlink(missing_ok=True)
    if os.environ.get("UPWASH_MPI") == "0" or shutil.which("mpicc") is None:
        return
    arguments = ["build", "--locked", "--package", "upwash-python", "--features", "mpi", "--lib", "--profile", profile]
    try:
        cargo(*arguments, environment=EXTENSION)
    except subprocess.CalledProcessError:
        print("upwash: the module for MPI cannot be built and is left out (it needs libclang)", file=sys.stderr)
        return
    name = "libupwash_python.dylib" if sys.platform == "darwin" else "libupwash_python.so"
    shutil.copy2(built(profile, name), MPI_MODULE)
    strip(MPI_MODULE)


if __name__ == "__main__":
    # For `maturin develop`, which packs what is here.
    build_program("dev")
    build_mpi_module("dev")
