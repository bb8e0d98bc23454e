//! Virtual environments that have what the test interpreter has and more, made of a few files.
#![allow(
    unreachable_pub,
    dead_code,
    clippy::disallowed_methods,
    reason = "each test file uses a part of it; tests make folders of their own"
)]

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The interpreter with verifiers.
pub fn test_python() -> PathBuf {
    env::var_os("ROLLHOUSE_TEST_PYTHON")
        .expect("ROLLHOUSE_TEST_PYTHON names no interpreter with verifiers: run the tests with `tests/run`")
        .into()
}

/// Where the packages of the test interpreter lie.
pub fn site_packages() -> PathBuf {
    let lib = test_python().parent().unwrap().parent().unwrap().join("lib");
    let pythons = fs::read_dir(&lib).unwrap().map(|entry| entry.unwrap().path());
    pythons.map(|python| python.join("site-packages")).find(|folder| folder.is_dir()).unwrap()
}

/// The folder of the environments of verifiers that tests use.
pub fn test_packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/rh_env")
}

/// Makes a virtual environment in a folder that also sees the packages in `places`. Its interpreter is `bin/python`.
pub fn make(folder: &Path, places: &[PathBuf]) -> PathBuf {
    let python = test_python();
    let original = python.parent().unwrap().parent().unwrap();
    let version = site_packages().parent().unwrap().file_name().unwrap().to_owned();
    let packages = folder.join("lib").join(version).join("site-packages");
    fs::create_dir_all(&packages).unwrap();
    fs::create_dir_all(folder.join("bin")).unwrap();
    fs::copy(original.join("pyvenv.cfg"), folder.join("pyvenv.cfg")).unwrap();
    symlink(fs::canonicalize(&python).unwrap(), folder.join("bin/python")).unwrap();
    let lines: Vec<&str> = places.iter().map(|place| place.to_str().unwrap()).collect();
    fs::write(packages.join("places.pth"), lines.join("\n")).unwrap();
    folder.join("bin/python")
}

/// One with verifiers and the environments that tests use.
pub fn with_test_packages(folder: &Path) -> PathBuf {
    make(folder, &[site_packages(), test_packages()])
}
