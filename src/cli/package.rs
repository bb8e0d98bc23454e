//! Tasksets that are Rust packages: their program is built, and goes on with the words that this one was given.

use std::{
    env,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    runtime::{self, Child, Program, Stream},
    taskset::{Found, TasksetError},
    tasksets,
    telemetry::names::env::PACKAGE,
};

/// [`tasksets::find`]; where a Rust package is meant, its program is built and takes the place of this one, before anything
/// was started. So this returns for tasksets of this program only.
///
/// # Errors
/// Those of [`tasksets::find`]; a package that cannot be built, or whose program does not know its taskset.
pub(super) fn find(id: &str) -> Result<Found, TasksetError> {
    match tasksets::find(id) {
        Err(TasksetError::Package { folder }) => Err(TasksetError::Source(take_over(&folder))),
        found => found,
    }
}

/// The folder of the package that this program was built from and started for.
pub(super) fn own() -> Option<PathBuf> {
    env::var_os(PACKAGE).map(PathBuf::from)
}

/// Builds the program of a package and becomes it; says why it could not.
fn take_over(folder: &Path) -> String {
    let shown = folder.display();
    let folder = match folder.canonicalize() {
        Ok(folder) => folder,
        Err(error) => return format!("cannot open the package `{shown}`: {error}"),
    };
    if own().is_some_and(|own| own.canonicalize().is_ok_and(|own| own == folder)) {
        return format!(
            "the program of the package `{shown}` does not know its taskset; its `main` must be \
             `rollhouse::cli::main_with(&[taskset::SHIPPED])`, with the folder's name for an id where there are several"
        );
    }
    match depends_on_rollhouse(&folder) {
        Ok(true) => {}
        Ok(false) => {
            return format!(
                "the package `{shown}` is no taskset: it does not depend on rollhouse; `rollhouse init NAME --kind rust` makes \
                 one that does"
            );
        }
        Err(problem) => return format!("cannot read the Cargo.toml of `{shown}`: {problem}"),
    }
    let program = match build(&folder) {
        Ok(program) => program,
        Err(problem) => return format!("cannot build the package `{shown}`: {problem}"),
    };
    let words: Vec<_> = env::args_os().skip(1).collect();
    runtime::turn_into(&program, &words, &[(PACKAGE, folder.as_os_str())]).to_string()
}

/// Whether the program of a package can be one of rollhouse. Any other must not run with our words.
fn depends_on_rollhouse(folder: &Path) -> Result<bool, String> {
    let text = fs::read_to_string(folder.join("Cargo.toml")).map_err(|error| error.to_string())?;
    let manifest: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
    let ours = |(name, from): (&String, &toml::Value)| {
        from.get("package").and_then(toml::Value::as_str).unwrap_or(name) == "rollhouse"
    };
    Ok(dependencies.is_some_and(|dependencies| dependencies.iter().any(ours)))
}

/// Builds the package as this program was built, for speed or for development, and returns its executable. What Cargo says
/// goes to the standard error.
fn build(folder: &Path) -> Result<PathBuf, String> {
    let mut arguments = vec!["build", "--message-format", "json-render-diagnostics"];
    if !cfg!(debug_assertions) {
        arguments.push("--release");
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let program = Program {
        arguments: arguments.into_iter().map(Into::into).collect(),
        // Its own settings, such as the target folder, are those of its folder.
        folder: Some(folder.to_owned()),
        environment: env::vars_os().collect(),
        stdout: Stream::Piped,
        stderr: Stream::Inherited,
        ..Program::new(cargo)
    };
    let manifest = folder.join("Cargo.toml");
    let built = runtime::block_on(async move {
        let mut child = Child::start(program).await.map_err(|error| format!("{error}; it is installed with Rust"))?;
        let output = child.stdout.take();
        let reading = tokio::task::spawn_blocking(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(File::from(output)).lines());
            lines.map_while(Result::ok).filter_map(|line| executable(&line, &manifest)).last()
        });
        let status = child.wait().await.map_err(|error| error.to_string())?;
        let executable = reading.await.map_err(|error| error.to_string())?;
        match (status.success(), executable) {
            (true, Some(executable)) => Ok(executable),
            (true, None) => Err("it makes no program; give it a `src/main.rs`".to_owned()),
            (false, _) => Err("see what `cargo build` says above".to_owned()),
        }
    });
    built.map_err(|error| error.to_string())?
}

/// The program that a line of Cargo's messages says was made of this package.
fn executable(line: &str, manifest: &Path) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let of_package = message["manifest_path"].as_str().is_some_and(|path| Path::new(path) == manifest);
    message["executable"].as_str().filter(|_| of_package).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let manifest = Path::new("/home/me/task/Cargo.toml");
        let line =
            r#"{"reason":"compiler-artifact","manifest_path":"/home/me/task/Cargo.toml","executable":"/t/task"}"#;
        assert_eq!(executable(line, manifest), Some(PathBuf::from("/t/task")));
        assert_eq!(executable(&line.replace("me/task", "me/other"), manifest), None);
        assert_eq!(executable(&line.replace("\"/t/task\"", "null"), manifest), None);
        assert_eq!(executable("not JSON", manifest), None);
    }
}
