//! The class names that tasks have in traces.

/// The words of an id as the name of a type: `my-task` is `MyTask`.
pub fn type_name(id: &str) -> String {
    let words = id.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect::<String>()
    };
    words.map(capital).collect()
}

/// The class name of a taskset's tasks: `my-task` has `MyTask`, `sums` has `SumsTask`.
pub(super) fn task_class(id: &str) -> String {
    let name = type_name(id);
    if name.ends_with("Task") { name } else { format!("{name}Task") }
}
