//! Which interpreter has a package.

use std::{
    env,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use serde_json::json;

use super::{
    BridgeError, Description, Installed,
    bridge::{Kept, ask},
};
use crate::taskset::python::Interpreter;

/// How long an interpreter may take to start and look.
const LOOK: Duration = Duration::from_secs(60);
/// How long a package may take to be imported: some fetch data when they are.
pub(super) const IMPORT: Duration = Duration::from_secs(600);

/// What a package sees of the environment beside what every interpreter does: how the network is reached, and where data and
/// caches lie. None of it is a key.
const USUAL: &[&str] = &[
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "UV_CACHE_DIR",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "NLTK_DATA",
    "TZ",
];

/// Where packages are looked for.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// `--python`: an interpreter, a name on PATH or the folder of a virtual environment. Nothing else is looked into then.
    pub python: Option<PathBuf>,
    /// Names of variables that the package's processes see beside the usual ones.
    pub pass_env: Vec<String>,
}

/// A package that is installed in an interpreter and is not open yet. It keeps a Python process once it was asked
/// something, which ends with it.
#[derive(Clone, Debug)]
pub struct Package {
    /// What runs and messages call it: its module's name in kebab case.
    pub id: String,
    /// The module.
    pub module: String,
    /// The Python that has it.
    pub interpreter: Interpreter,
    pub(super) kept: Kept,
}

/// Why there is no package.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// It is in none of the interpreters.
    #[error(
        "no interpreter has a package `{id}` of verifiers: {}; `rollhouse env install {id}` installs one from PyPI, \
         `rollhouse env install ./FOLDER` your own, and `--python` names an interpreter that has it",
        listed(looked)
    )]
    NotInstalled {
        /// The id asked for.
        id: String,
        /// Where it was looked for.
        looked: Vec<Looked>,
    },
    /// Python does not work.
    #[error("{0}")]
    Bridge(#[from] BridgeError),
}

/// An interpreter that was looked into, and what it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The interpreter, as it was named.
    pub place: String,
    /// What it lacks.
    pub lacks: String,
}

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.place, self.lacks)
    }
}

fn listed(looked: &[Looked]) -> String {
    match looked {
        [] => "there is no Python here".to_owned(),
        looked => looked.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

/// What is installed in one interpreter.
#[derive(Clone, Debug)]
pub struct InstalledIn {
    /// The interpreter, as users know it.
    pub place: String,
    /// The tasksets, by name; or why it does not work.
    pub tasksets: Result<Vec<Installed>, BridgeError>,
}

/// What an interpreter says of a module.
#[derive(Debug, Deserialize)]
struct Sight {
    python_version: String,
    verifiers: Option<String>,
    has_v1: bool,
    ships: bool,
    place: Option<String>,
}

impl Search {
    /// Finds the package with an id. Looked into, in this order: the interpreter that is named, and no other then; the
    /// environment that `rollhouse env install` made for it; the active one (`VIRTUAL_ENV`); that of the uv project of the
    /// working folder; `.venv` there or above; `python3`. Starts Python once for each, and does not import verifiers.
    ///
    /// # Errors
    /// When none has it; says which were looked into.
    pub fn find(&self, id: &str) -> Result<Package, FindError> {
        self.find_in(id, &|name| env::var_os(name), &env::current_dir().unwrap_or_default())
    }

    fn find_in(
        &self,
        id: &str,
        variable: &dyn Fn(&str) -> Option<OsString>,
        folder: &Path,
    ) -> Result<Package, FindError> {
        let not_installed = |looked| FindError::NotInstalled { id: id.to_owned(), looked };
        let Some(module) = module_name(id) else { return Err(not_installed(Vec::new())) };
        let mut looked = Vec::new();
        for (place, interpreter) in self.interpreters(Some(&module), variable, folder)? {
            let kept = Kept::of(&interpreter);
            let sight = ask::<Sight>(&kept, &interpreter, id, json!({"op": "look", "module": module}), LOOK);
            let lacks = match sight {
                Ok(sight) => match sight.lacks() {
                    None => {
                        let id = module.replace('_', "-");
                        return Ok(Package { id, module, interpreter, kept });
                    }
                    Some(lacks) => lacks,
                },
                Err(error) if self.python.is_some() => return Err(error.into()),
                Err(error) => format!("does not work: {}", error.message),
            };
            looked.push(Looked { place, lacks });
        }
        Err(not_installed(looked))
    }

    /// The interpreters that are looked into for a module, by the names that users know them by.
    fn interpreters(
        &self,
        module: Option<&str>,
        variable: &dyn Fn(&str) -> Option<OsString>,
        folder: &Path,
    ) -> Result<Vec<(String, Interpreter)>, BridgeError> {
        let passed: Vec<String> = USUAL.iter().map(|name| (*name).to_owned()).chain(self.pass_env.clone()).collect();
        let at = |path: &Path| Interpreter::find(Some(path), folder, &passed);
        if let Some(python) = &self.python {
            let found = at(python).map_err(|error| BridgeError::new(error.to_string()))?;
            return Ok(vec![(python.display().to_string(), found)]);
        }
        let above = |file: &'static str| folder.ancestors().find(|folder| folder.join(file).exists());
        let project = above("uv.lock").map(|project| match variable("UV_PROJECT_ENVIRONMENT") {
            Some(own) => project.join(own),
            None => project.join(".venv"),
        });
        let own = data_folder_in(variable).zip(module).map(|(data, module)| made_for(&data, module));
        let others = [
            variable("VIRTUAL_ENV").map(PathBuf::from),
            project,
            above(".venv/bin/python").map(|folder| folder.join(".venv")),
            Some(PathBuf::from("python3")),
        ];
        let mut found: Vec<(String, Interpreter)> = Vec::new();
        for path in own.into_iter().flatten().chain(others.into_iter().flatten()) {
            if let Ok(interpreter) = at(&path)
                && found.iter().all(|(_, known)| known.program != interpreter.program)
            {
                found.push((path.display().to_string(), interpreter));
            }
        }
        Ok(found)
    }

    /// Every taskset that is installed where [`Self::find`] looks, by interpreter; environments of `rollhouse env install`
    /// are looked into by whoever made them.
    ///
    /// # Errors
    /// When the interpreter that is named does not work.
    pub fn installed(&self) -> Result<Vec<InstalledIn>, BridgeError> {
        let folder = env::current_dir().unwrap_or_default();
        let interpreters = self.interpreters(None, &|name| env::var_os(name), &folder)?;
        let list = |interpreter: &Interpreter| {
            ask(&Kept::of(interpreter), interpreter, "installed packages", json!({"op": "installed"}), LOOK)
        };
        Ok(interpreters
            .into_iter()
            .map(|(place, interpreter)| InstalledIn { place, tasksets: list(&interpreter) })
            .collect())
    }
}

impl Sight {
    /// What is missing for a taskset to be had; `None` when nothing is.
    fn lacks(&self) -> Option<String> {
        let python = &self.python_version;
        match (&self.verifiers, self.ships || self.place.is_some()) {
            (None, false) => Some(format!("(Python {python}) has neither it nor verifiers")),
            (None, true) => Some(format!("(Python {python}) has the module, but no verifiers")),
            (Some(version), _) if !self.has_v1 => Some(format!("has verifiers {version}, which is too old: 0.4.0")),
            (Some(version), false) => Some(format!("has verifiers {version}, but not it")),
            (Some(_), true) => None,
        }
    }
}

impl Package {
    /// Ends the Python that it keeps for the next question, which then takes seconds longer.
    pub fn rest(&self) {
        drop(self.kept.take());
    }

    /// What it says of itself; imports it.
    ///
    /// # Errors
    /// When it cannot be imported, or has no taskset.
    pub fn describe(&self) -> Result<Description, BridgeError> {
        ask(&self.kept, &self.interpreter, &self.id, json!({"op": "describe", "id": self.id}), IMPORT)
    }
}

/// The module that an id names: `owner/My-Env@1.2` is `my_env`. `None` for what can be no module.
pub fn module_name(id: &str) -> Option<String> {
    let id = id.trim();
    if id.starts_with(['.', '/', '~']) {
        return None;
    }
    let name = id.rsplit('/').next()?.split('@').next()?;
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    (plain && begins).then(|| name.replace('-', "_").to_lowercase())
}

/// The folder of the environments that `rollhouse env install` makes: one each, named as the module.
pub fn data_folder() -> Option<PathBuf> {
    data_folder_in(&|name| env::var_os(name))
}

fn data_folder_in(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")))?;
    Some(data.join("rollhouse/envs"))
}

/// The virtual environment that stands for a module in the folder of them; a link that a new one replaces at once.
pub fn current(data: &Path, module: &str) -> PathBuf {
    data.join(module).join("current")
}

/// The environments of `rollhouse env install` that have a module: that of its name, then those of distributions that have
/// several.
fn made_for(data: &Path, module: &str) -> Vec<PathBuf> {
    let below = |folder: &Path| -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let has = |venv: &PathBuf| {
        below(&venv.join("lib"))
            .iter()
            .map(|python| python.join("site-packages"))
            .any(|packages| packages.join(module).is_dir() || packages.join(format!("{module}.py")).is_file())
    };
    let own = current(data, module);
    let others = below(data).into_iter().map(|folder| folder.join("current")).filter(|venv| *venv != own && has(venv));
    [own.clone()].into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_modules_as_verifiers_reads_them() {
        let module = |id: &str| module_name(id).unwrap_or_default();
        assert_eq!(module("wiki-search"), "wiki_search");
        assert_eq!(module("PrimeIntellect/Wiki_Search@0.1.2"), "wiki_search");
        assert_eq!(module(" gsm8k@latest"), "gsm8k");
        for id in ["", "a b", "-x", "1st", "a.b", "owner/", "a/b;c", "./my-env", "/my_env"] {
            assert_eq!(module_name(id), None, "{id}");
        }
    }

    #[test]
    fn data_lies_where_the_user_keeps_it() {
        let folder = |variables: &[(&str, &str)]| {
            let found = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            data_folder_in(&found)
        };
        let expected = |path: &str| Some(PathBuf::from(path));
        assert_eq!(folder(&[("HOME", "/h")]), expected("/h/.local/share/rollhouse/envs"));
        assert_eq!(folder(&[("HOME", "/h"), ("XDG_DATA_HOME", "/x")]), expected("/x/rollhouse/envs"));
        assert_eq!(folder(&[("HOME", "/h"), ("XDG_DATA_HOME", "x")]), expected("/h/.local/share/rollhouse/envs"));
        assert_eq!(folder(&[]), None);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "tests make folders of their own")]
    fn interpreters_are_looked_into_from_the_nearest_on() {
        let place = tempfile::tempdir().unwrap();
        let venv = |name: &str| {
            let bin = place.path().join(name).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            std::fs::write(bin.join("python"), "").unwrap();
        };
        let envs = "data/rollhouse/envs";
        for name in ["my_env/current", "other/current", "third/current"].map(|name| format!("{envs}/{name}")) {
            venv(&name);
        }
        for name in ["active", "project/.venv", "named"] {
            venv(name);
        }
        std::fs::create_dir_all(place.path().join(envs).join("other/current/lib/python3.12/site-packages/my_env"))
            .unwrap();
        let variable = |name: &str| {
            let own = |path: &str| Some(place.path().join(path).into_os_string());
            match name {
                "XDG_DATA_HOME" => own("data"),
                "VIRTUAL_ENV" => own("active"),
                _ => None,
            }
        };
        let project = place.path().join("project");
        let names = |search: &Search, module| -> Vec<String> {
            let found = search.interpreters(module, &variable, &project.join("a/b")).unwrap();
            let own = |name: String| name.strip_prefix(place.path().to_str().unwrap()).map(str::to_owned);
            found.into_iter().filter_map(|(name, _)| own(name)).collect()
        };
        let search = Search::default();
        let own = ["my_env", "other"].map(|name| format!("/{envs}/{name}/current"));
        let all = [own[0].as_str(), &own[1], "/active", "/project/.venv"];
        assert_eq!(names(&search, Some("my_env")), all);
        assert_eq!(names(&search, None), all[2..]);
        std::fs::write(project.join("uv.lock"), "").unwrap();
        assert_eq!(names(&search, None), all[2..], "the project's environment is that .venv");
        let named = Search { python: Some(place.path().join("named")), ..Search::default() };
        assert_eq!(names(&named, Some("my_env")), ["/named"]);
    }
}
