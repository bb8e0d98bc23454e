//! Which Python runs a taskset, and what it sees of the environment.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// How Python is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The program: a path.
    pub program: PathBuf,
    /// What stands before Python's own arguments.
    pub arguments: Vec<OsString>,
    /// The whole environment of its processes.
    pub environment: Vec<(OsString, OsString)>,
}

/// Why there is no interpreter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpreterError {
    /// The configured one is not there.
    #[error("no Python at `{}`: name an interpreter or the folder of a virtual environment", .0.display())]
    NotThere(PathBuf),
    /// None was found.
    #[error(
        "no Python found for {}: install Python 3.8 or newer (`python3` on PATH), or make a virtual environment beside the \
         taskset with `python3 -m venv .venv` or `uv venv`",
        .0.display()
    )]
    None(PathBuf),
}

/// What every worker sees of the environment; all else, keys of endpoints above all, must be passed by name.
const PASSED: &[&str] = &["PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "VIRTUAL_ENV"];

impl Interpreter {
    /// Finds the interpreter for a taskset in `folder`. The first of these that is there: the explicit one (a path, a name
    /// on PATH, or the folder of a virtual environment), `.venv` or `venv` in the folder or the nearest folder above it,
    /// a `uv` project (`pyproject.toml` and `uv.lock` in the folder or above, `uv` on PATH), the active virtual environment
    /// (`VIRTUAL_ENV`), `python3`.
    ///
    /// `passed` names the variables of the environment that its processes see beside the usual ones.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(explicit: Option<&Path>, folder: &Path, passed: &[String]) -> Result<Self, InterpreterError> {
        Self::find_in(explicit, folder, passed, &|name| env::var_os(name))
    }

    fn find_in(
        explicit: Option<&Path>,
        folder: &Path,
        passed: &[String],
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, InterpreterError> {
        let names = PASSED.iter().copied().chain(passed.iter().map(String::as_str));
        let environment = names.filter_map(|name| Some((name.into(), variable(name)?))).collect();
        let plain = Self { program: PathBuf::new(), arguments: Vec::new(), environment };
        let on_path = |name: &Path| {
            env::split_paths(&variable("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
        };
        if let Some(path) = explicit {
            let not_there = || InterpreterError::NotThere(path.to_owned());
            if path.is_dir() {
                return plain.of_venv(path).ok_or_else(not_there);
            }
            let is_name = path.components().count() == 1;
            let program = if is_name { on_path(path) } else { absolute(path).filter(|path| path.is_file()) };
            return program.map(|program| plain.with(program)).ok_or_else(not_there);
        }
        let folder = absolute(folder).unwrap_or_else(|| folder.to_owned());
        let mut venvs = folder.ancestors().flat_map(|above| [above.join(".venv"), above.join("venv")]);
        if let Some(found) = venvs.find_map(|venv| plain.clone().of_venv(&venv)) {
            return Ok(found);
        }
        let is_project = |above: &&Path| above.join("pyproject.toml").is_file() && above.join("uv.lock").is_file();
        if let (Some(project), Some(uv)) = (folder.ancestors().find(is_project), on_path(Path::new("uv"))) {
            let arguments = ["run".into(), "--project".into(), project.into(), "python".into()].to_vec();
            return Ok(Self { arguments, ..plain.with(uv) });
        }
        let active = variable("VIRTUAL_ENV").and_then(|venv| plain.clone().of_venv(Path::new(&venv)));
        active
            .or_else(|| on_path(Path::new("python3")).map(|program| plain.with(program)))
            .ok_or(InterpreterError::None(folder))
    }

    fn with(&self, program: PathBuf) -> Self {
        Self { program, ..self.clone() }
    }

    /// The interpreter of a virtual environment, which is then the active one for what the taskset itself starts.
    fn of_venv(mut self, venv: &Path) -> Option<Self> {
        let venv = absolute(venv)?;
        self.program = venv.join("bin/python");
        if !self.program.is_file() {
            return None;
        }
        let path = self.environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
        let folders = [venv.join("bin")].into_iter().chain(path.iter().flat_map(env::split_paths));
        let path = env::join_paths(folders).ok()?;
        self.environment.retain(|(name, _)| name != "PATH" && name != "VIRTUAL_ENV");
        self.environment.extend([("PATH".into(), path), ("VIRTUAL_ENV".into(), venv.into())]);
        Some(self)
    }
}

/// Workers run in another folder than we do.
fn absolute(path: &Path) -> Option<PathBuf> {
    std::path::absolute(path).ok()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests make folders of their own")]
mod tests {
    use std::fs;

    use super::*;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new(files: &[&str]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for file in files {
                let path = folder.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            Self(folder)
        }

        fn find(&self, explicit: Option<&str>, variables: &[(&str, &str)]) -> Result<Interpreter, InterpreterError> {
            let variable = |name: &str| {
                let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
                Some(value.replace('@', self.0.path().to_str().unwrap()).into())
            };
            let explicit = explicit.map(|path| PathBuf::from(path.replace('@', self.0.path().to_str().unwrap())));
            Interpreter::find_in(explicit.as_deref(), &self.0.path().join("a/b"), &["MINE".to_owned()], &variable)
        }

        fn program(&self, explicit: Option<&str>, variables: &[(&str, &str)]) -> String {
            let program = self.find(explicit, variables).unwrap().program;
            program.strip_prefix(self.0.path()).unwrap().to_str().unwrap().to_owned()
        }
    }

    #[test]
    fn the_nearest_wins_and_the_explicit_one_over_all() {
        let uv = ["bin/uv", "bin/python3", "a/pyproject.toml", "a/uv.lock", "active/bin/python", "a/b/taskset.py"];
        let variables = [("PATH", "@/bin"), ("VIRTUAL_ENV", "@/active")];
        let all = Place::new(&[&uv[..], &["a/b/venv/bin/python", "a/.venv/bin/python", "own/bin/python"]].concat());
        assert_eq!(all.program(None, &variables), "a/b/venv/bin/python");
        assert_eq!(all.program(Some("@/own"), &variables), "own/bin/python");
        assert_eq!(all.program(Some("@/own/bin/python"), &variables), "own/bin/python");
        assert_eq!(all.program(Some("python3"), &variables), "bin/python3");
        let project = Place::new(&uv);
        assert_eq!(project.program(None, &variables), "bin/uv");
        let arguments = project.find(None, &variables).unwrap().arguments;
        assert_eq!(arguments[2], project.0.path().join("a"), "{arguments:?}");
        let active = Place::new(&["bin/python3", "active/bin/python", "a/pyproject.toml", "a/uv.lock"]);
        assert_eq!(active.program(None, &variables), "active/bin/python", "no uv");
        assert_eq!(active.program(None, &variables[..1]), "bin/python3");
    }

    #[test]
    fn no_interpreter_says_what_to_install() {
        let place = Place::new(&[]);
        let message = place.find(None, &[("PATH", "@/bin")]).unwrap_err().to_string();
        assert!(message.contains("install Python 3.8") && message.contains("-m venv .venv"), "{message}");
        let message = place.find(Some("@/no/python"), &[("PATH", "@/bin")]).unwrap_err().to_string();
        assert!(message.contains("/no/python`"), "{message}");
    }

    #[test]
    fn the_environment_holds_what_is_named_and_no_key() {
        let place = Place::new(&["bin/python3", "own/bin/python"]);
        let variables = [("PATH", "@/bin"), ("OPENAI_API_KEY", "sk-1"), ("MINE", "1"), ("VIRTUAL_ENV", "@/none")];
        let names = |found: Interpreter| {
            found.environment.into_iter().map(|(name, _)| name.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(names(place.find(None, &variables).unwrap()), ["PATH", "VIRTUAL_ENV", "MINE"]);
        let own = place.find(Some("@/own"), &variables).unwrap();
        let path = own.environment.iter().find(|(name, _)| name == "PATH").unwrap().1.to_str().unwrap().to_owned();
        assert!(path.contains("own/bin:") && path.ends_with("/bin"), "{path}");
        assert_eq!(own.environment.last().unwrap().1, place.0.path().join("own"));
    }
}
