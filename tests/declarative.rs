//! Declared tasksets as their authors meet them: every part of `taskset.toml`, every fault, and what a run makes of it.
#![allow(clippy::disallowed_methods, reason = "tests prepare files and processes of their own")]

mod program;

use std::fs;

use program::{Done, Folder, Simulator, episodes};
use proptest::prelude::*;
use rollhouse::{
    config::{Document, Reader},
    taskset::PythonRandom,
    tasksets,
};
use serde_json::{Value, json};

/// What every taskset here is scored by, unless it says otherwise.
const REWARD: &str = "\n[[reward]]\nname = \"correct\"\nscorer = \"exact\"\n";

const SUMS: &str = r#"
summary = "Add two numbers"
prompt = "What is {{ a }} + {{ b }}? End with #### and the number."
answer = "{{ a + b }}"
[data]
rows = [{ a = 1, b = 2 }, { a = 3, b = 4 }]
[[reward]]
name = "correct"
scorer = "number"
parse = ["strip_think", "hashes"]
"#;

/// A folder with one taskset of this text in `my-task/`.
fn with(text: &str) -> Folder {
    let folder = Folder::new();
    folder.write("my-task/taskset.toml", text);
    folder
}

/// The tasks of `my-task`, as they stand in results.
#[track_caller]
fn shown(folder: &Folder) -> Vec<Value> {
    let done = folder.run(&["tasksets", "show", "./my-task", "-n", "100", "--json"]).expect(0);
    done.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].clone()).collect()
}

/// A perfect player of `my-task`, and an evaluation with it.
#[track_caller]
fn played(folder: &Folder, flags: &[&str]) -> Value {
    let path = folder.path().join("my-task");
    let simulator = Simulator::start(&["--taskset", path.to_str().unwrap()]);
    let words = ["eval", "./my-task", "-m", "sim", "-b", &simulator.base_url, "--json"];
    folder.run(&[&words, flags].concat()).expect(0).json()
}

#[test]
fn ten_lines_are_a_taskset() {
    assert!(SUMS.trim().lines().count() <= 10);
    let folder = with(SUMS);
    let tasks = shown(&folder);
    assert_eq!(tasks[0]["prompt"], "What is 1 + 2? End with #### and the number.");
    assert_eq!((&tasks[1]["answer"], &tasks[1]["a"], &tasks[1]["idx"]), (&json!("7"), &json!(3), &json!(1)));
    assert_eq!(played(&folder, &[])["reward"]["mean"], 1.0);
}

#[test]
fn a_first_run_is_simulated_and_lies_in_a_folder_of_the_tasksets_name() {
    let folder = with(SUMS);
    let results = folder.run(&["eval", "./my-task", "-r", "20", "--json"]).expect(0).json();
    assert_eq!((&results["scored"], &results["taskset"]), (&json!(40), &json!("my-task")));
    let mean = results["reward"]["mean"].as_f64().unwrap();
    assert!(mean > 0.3 && mean < 1.0, "the simulator is right most times and not always: {mean}");
    let run = folder.only_run();
    assert!(run.parent().unwrap().ends_with("my-task--simulator--null"), "{}", run.display());
    assert_eq!(episodes(&run)[0]["task"]["type"], "MyTask");
}

#[test]
fn a_taskset_is_named_in_every_way_that_a_path_can_be() {
    let folder = with(SUMS);
    folder.write("exp.toml", "num_rollouts = 2\n[env.taskset]\nid = \"./my-task\"\n");
    folder.write("lone_sums.toml", SUMS);
    let inside = folder.path().join("my-task");
    let whole = inside.to_str().unwrap().to_owned();
    for id in ["./my-task", "my-task", "./my-task/", &whole, "my-task/taskset.toml"] {
        let results = folder.run(&["eval", id, "--json"]).expect(0).json();
        assert_eq!(results["taskset"], "my-task", "{id}");
    }
    assert_eq!(folder.run(&["eval", "lone_sums.toml", "--json"]).expect(0).json()["taskset"], "lone-sums");
    assert_eq!(folder.run(&["eval", "@", "exp.toml", "--json"]).expect(0).json()["rollouts"], 4);
    let mut here = folder.command(&["eval", ".", "--json"]);
    let here = Done::of(here.current_dir(&inside).output().unwrap()).expect(0).json();
    assert_eq!(here["taskset"], "my-task");
}

#[test]
fn prompts_are_columns_texts_or_messages() {
    let rows = "[data]\nrows = [{ question = \"1 + 1?\", answer = 2, system_prompt = \"Be brief.\", id = 7 }]\n";
    let tasks = shown(&with(&format!("{rows}{REWARD}")));
    assert_eq!(tasks[0]["prompt"], "1 + 1?");
    assert_eq!(
        (&tasks[0]["system_prompt"], &tasks[0]["id"], &tasks[0]["answer"]),
        (&json!("Be brief."), &json!("7"), &json!(2))
    );

    let rows = "[data]\nrows = [{ prompt = [{ role = \"user\", content = \"1 + 1?\" }], answer = \"2\" }]\n";
    assert_eq!(shown(&with(&format!("{rows}{REWARD}")))[0]["prompt"], json!([{ "role": "user", "content": "1 + 1?" }]));

    let text = format!(
        "system_prompt = \"Add in {{{{ config.language }}}}.\"\nid = \"sum-{{{{ a }}}}\"\nname = \"{{{{ a }}}} and {{{{ a }}}}\"\n\
         [config]\nlanguage = \"French\"\n\
         [[prompt]]\ncontent = \"1 + 1?\"\n[[prompt]]\nrole = \"assistant\"\ncontent = \"2\"\n\
         [[prompt]]\ncontent = \"{{{{ a }}}} + {{{{ a }}}}?\"\n[data]\nrows = [{{ a = 2, answer = \"4\" }}]\n{REWARD}"
    );
    let tasks = shown(&with(&text));
    assert_eq!(tasks[0]["prompt"][1], json!({ "role": "assistant", "content": "2" }));
    assert_eq!(tasks[0]["prompt"][2], json!({ "role": "user", "content": "2 + 2?" }));
    let names = ["id", "name", "system_prompt"].map(|key| tasks[0][key].as_str().unwrap());
    assert_eq!(names, ["sum-2", "2 and 2", "Add in French."]);
}

#[test]
fn columns_that_every_task_has_go_to_their_places() {
    let rows = "[data]\nrows = [{ prompt = \"a\", answer = \"b\", description = \"c\", timeout = { agent = 5 }, level = 3 }]\n\
                [limits]\ntimeout = { agent = 9, scoring = 2.5 }\n";
    let task = shown(&with(&format!("{rows}{REWARD}"))).remove(0);
    assert_eq!(task["description"], "c");
    assert_eq!(task["timeout"], json!({ "agent": 5.0, "scoring": 2.5 }), "the row's own deadline counts");
    assert_eq!(task["level"], 3);
}

#[test]
fn columns_are_renamed_filtered_and_sampled_as_python_does() {
    let rows: Vec<String> =
        (0..10).map(|n| format!("{{\"problem\": \"p{n}\", \"n\": {n}, \"answer\": \"x\"}}\n")).collect();
    let data = |rest: &str| {
        let text = format!("[data]\npath = \"rows.jsonl\"\nrename = {{ question = \"problem\" }}\n{rest}\n{REWARD}");
        let folder = with(&text);
        folder.write("my-task/rows.jsonl", &rows.concat());
        folder
    };
    let numbers =
        |folder: &Folder| -> Vec<u64> { shown(folder).iter().map(|task| task["n"].as_u64().unwrap()).collect() };
    assert_eq!(shown(&data(""))[3]["prompt"], "p3");
    let filtered = data("filter = \"n % 2 == 0 and question != 'p4'\"");
    assert_eq!(numbers(&filtered), [0, 2, 6, 8]);
    assert_eq!(shown(&filtered)[3]["idx"], 3, "positions count the rows that are kept");
    let none = data("filter = \"n > 10\"").run(&["eval", "./my-task"]).expect(1);
    none.says("there are no rows in").says("that pass `filter`");
    let mut expected: Vec<u64> = (0..10).collect();
    PythonRandom::new(5).shuffle(&mut expected);
    assert_eq!(numbers(&data("shuffle = true\nseed = 5")), expected);
    assert_eq!(numbers(&data("shuffle = true\nseed = 5\nlimit = 3")), expected[..3]);
    assert_eq!(numbers(&data("limit = 2")), [0, 1]);
}

#[test]
fn several_files_are_one_after_the_other() {
    let folder = with(&format!("[data]\npath = [\"a.jsonl\", \"b.csv\"]\n{REWARD}"));
    folder.write("my-task/a.jsonl", "{\"prompt\": \"1\", \"answer\": \"2\"}\n");
    folder.write("my-task/b.csv", "prompt,answer\n3,4\n");
    let prompts: Vec<Value> = shown(&folder).iter().map(|task| task["prompt"].clone()).collect();
    assert_eq!(prompts, ["1", "3"]);
}

#[test]
fn a_data_set_of_the_hub_is_read_from_the_cache() {
    let folder = with(&format!("[data]\ndataset = \"owner/sums\"\nsplit = \"test\"\n{REWARD}"));
    let cache = "cache/datasets--owner--sums";
    folder.write(&format!("{cache}/refs/main"), "0123456789abcdef0123456789abcdef01234567");
    folder.write(
        &format!("{cache}/snapshots/0123456789abcdef0123456789abcdef01234567/main/test.jsonl"),
        "{\"question\": \"1 + 1?\", \"answer\": \"2\"}\n",
    );
    let mut command = folder.command(&["tasksets", "show", "./my-task", "--json"]);
    let done = Done::of(command.env("HF_HUB_CACHE", folder.path().join("cache")).output().unwrap()).expect(0);
    done.says("1 + 1?");
}

#[test]
fn text_in_a_table_of_rows_stays_what_it_is() {
    let tasks = shown(&with(&format!(
        "[data]\nrows = [{{ prompt = \"None\", answer = \"None\", list = [\"None\", 1] }}]\n{REWARD}"
    )));
    assert_eq!(
        (&tasks[0]["prompt"], &tasks[0]["answer"], &tasks[0]["list"]),
        (&json!("None"), &json!("None"), &json!(["None", 1]))
    );
}

#[test]
fn worked_examples_stand_before_the_prompt() {
    let written = "prompt = \"{{ a }} + 1?\"\nanswer = \"{{ a + 1 }}\"\nsystem_prompt = \"Add.\"\n[data]\nrows = [{ a = 1 }, { a = 2 }]\n\
                   [few_shot]\nexamples = [{ user = \"0 + 1?\", assistant = \"1\" }]\n";
    let folder = with(&format!("{written}{REWARD}"));
    let prompt = shown(&folder)[1]["prompt"].clone();
    let texts: Vec<&str> =
        prompt.as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["0 + 1?", "1", "2 + 1?"]);
    assert_eq!(played(&folder, &[])["reward"]["mean"], 1.0, "examples are no turns of the model");

    let drawn = "prompt = \"{{ a }} + 1?\"\nanswer = \"{{ a + 1 }}\"\n[data]\nrows = [{ a = 1 }, { a = 2 }, { a = 3 }]\n\
                 [few_shot]\nrows = [{ a = 1 }, { a = 2 }, { a = 8 }]\ncount = 2\nassistant = \"It is {{ answer }}.\"\n";
    let texts = |task: &Value| -> Vec<String> {
        let messages = task["prompt"].as_array().unwrap().iter();
        messages.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
    };
    let tasks = shown(&with(&format!("{drawn}{REWARD}")));
    assert_eq!(texts(&tasks[2]), ["1 + 1?", "It is 2.", "2 + 1?", "It is 3.", "3 + 1?"]);
    assert_eq!(
        texts(&tasks[0]),
        ["2 + 1?", "It is 3.", "8 + 1?", "It is 9.", "1 + 1?"],
        "a task is no example of itself"
    );
}

const TALK: &str = r#"
prompt = "Remember {{ a }}. What is it?"
reference = ["{{ a }}", "{{ a + b }}", "{{ a + b }}!"]
[data]
rows = [{ a = 1, b = 2, answer = "3!" }, { a = 3, b = 4, answer = "7!" }]
[user]
turns = ["And plus {{ b }}? You said {{ reply }}.", "Once more, turn {{ turn }}"]
[[reward]]
name = "correct"
scorer = "exact"
"#;

#[test]
fn a_scripted_user_speaks_after_each_reply() {
    let folder = with(TALK);
    let results = played(&folder, &[]);
    assert_eq!((&results["reward"]["mean"], &results["turns"]["mean"]), (&json!(1.0), &json!(3.0)));
    let text = fs::read_to_string(folder.only_run().join("traces.jsonl")).unwrap();
    assert!(text.contains("And plus 2? You said 1.") && text.contains("Once more, turn 2"), "{text}");
}

#[test]
fn a_user_ends_the_conversation_when_its_condition_holds() {
    let text =
        TALK.replace("[[reward]]", "stop_when = \"reply == '3' and turn == 2\"\n[[reward]]").replace("\"3!\"", "\"3\"");
    let results = played(&with(&text), &[]);
    assert_eq!(results["turns"]["mean"], 2.5, "the first task ends after two turns");
    assert_eq!(results["reward"]["mean"], 1.0);
}

#[test]
fn a_user_may_open_the_conversation() {
    let text = TALK.replace("prompt = \"Remember {{ a }}. What is it?\"\n", "system_prompt = \"Remember {{ a }}.\"\n");
    let text = text.replace("\"And plus", "\"Remember {{ a }}. What is it?\", \"And plus");
    let results = played(&with(&text), &[]);
    assert_eq!((&results["reward"]["mean"], &results["turns"]["mean"]), (&json!(1.0), &json!(3.0)));
}

#[test]
fn keys_of_its_own_are_flags_and_stand_in_the_help() {
    let text = format!(
        "prompt = \"{{{{ config.greeting }}}}, {{{{ config.times * 2 }}}}\"\n[config]\ngreeting = \"hello\"\ntimes = 2\nloud = false\n\
         tags = [\"a\"]\n[data]\nrows = [{{ answer = \"x\", level = 1 }}, {{ answer = \"x\", level = 3 }}]\n\
         filter = \"level <= config.times\"\n{REWARD}"
    );
    let folder = with(&text);
    let prompt = |flags: &[&str]| {
        let words = [&["eval", "./my-task", "--clean", "--run.name", "one"], flags].concat();
        folder.run(&words).expect(0);
        let run = folder.path().join("outputs/one");
        let rows = episodes(&run);
        (rows[0]["task"]["data"]["prompt"].as_str().unwrap().to_owned(), rows.len())
    };
    assert_eq!(prompt(&[]), ("hello, 4".to_owned(), 1));
    assert_eq!(prompt(&["-a", "{\"greeting\": \"bye\", \"times\": 3}"]), ("bye, 6".to_owned(), 2));
    assert_eq!(prompt(&["--env.taskset.greeting", "5", "--env.taskset.loud"]), ("5, 4".to_owned(), 1));
    let help = folder.run(&["eval", "./my-task", "--help"]).expect(0);
    help.says("--env.taskset.greeting").says("default \"hello\"");
    let done =
        folder.run(&["eval", "./my-task", "--env.taskset.times", "many", "--env.taskset.greting", "x"]).expect(2);
    done.says("--env.taskset.times").says("expected a whole number").says("did you mean `--env.taskset.greeting`");
    folder.run(&["tasksets", "show", "./my-task", "-a", "{\"times\": 5}"]).expect(0).says("hello, 10");
}

#[test]
fn all_faults_of_the_file_come_at_once_with_their_places() {
    let text = "promt = \"x\"\nanswer = \"{{ a + \"\n[data]\npath = \"rows.jsonl\"\nrows = [1]\nfilter = \"a <\"\n\
                [config]\nid = 3\n[[reward]]\nname = \"a\"\nscorer = \"exakt\"\n[user]\nturn = [\"x\"]\n[limits]\nmax_turns = 0\n";
    let done = with(text).run(&["eval", "./my-task"]).expect(2);
    let expected = [
        "./my-task/taskset.toml:1:1: promt: unknown key; did you mean `prompt`?",
        "./my-task/taskset.toml:2:10: answer: line 1: syntax error",
        "./my-task/taskset.toml:4:8: data.path: rows from several places; give one of `rows`, `path`, `dataset`",
        "./my-task/taskset.toml:5:8: data.rows: item 0 is no table",
        "./my-task/taskset.toml:6:10: data.filter: line 1: syntax error",
        "./my-task/taskset.toml:8:6: config.id: is a key of every taskset",
        "./my-task/taskset.toml:11:10: reward[0].scorer: unknown scorer `exakt`; did you mean `exact`?",
        "./my-task/taskset.toml:12:1: user.turns: missing",
        "./my-task/taskset.toml:13:1: user.turn: unknown key; did you mean `user.turns`?",
        "./my-task/taskset.toml:15:13: limits.max_turns: out of bounds: 0",
    ];
    expected.into_iter().fold(done, Done::says);
}

#[test]
fn what_a_taskset_cannot_do_without_is_asked_for() {
    let refused = |text: &str| with(text).run(&["eval", "./my-task"]).expect(2);
    refused("prompt = \"x\"\n")
        .says("data: missing")
        .says("nothing scores a reply; add a `[[reward]]` or a `[[judge]]`");
    refused(&format!("[data]\nlimit = 3\n{REWARD}")).says("there are no rows; give one of `rows`, `path`, `dataset`");
    refused("[data]\nrows = [{ a = 1 }]\nsplit = \"x\"\n[[reward]]\nscorer = \"exact\"\n")
        .says("is for a `dataset` of the hub");
    refused("[data]\nrows = [\n").says("./my-task/taskset.toml:").says("invalid TOML");
}

#[test]
fn a_fault_of_a_row_names_file_row_and_column() {
    let fails = |text: &str, expected: &[&str]| {
        let folder = with(text);
        folder.write("my-task/rows.csv", "a,answer\n1,2\n3,4\n");
        let done = folder.run(&["eval", "./my-task"]).expect(1);
        expected.iter().fold(done, |done, expected| done.says(expected));
        assert!(folder.runs().is_empty(), "a run that cannot begin leaves nothing");
    };
    let data = "[data]\npath = \"rows.csv\"\n";
    fails(
        &format!("prompt = \"{{{{ a }}}} {{{{ b }}}}\"\n{data}{REWARD}"),
        &["rows.csv:2: prompt, line 1: undefined value: `b`"],
    );
    fails(
        &format!("{data}{REWARD}"),
        &["rows.csv:2: there is no column `prompt` or `question`; the row has a, answer"],
    );
    let renamed = format!("prompt = \"x\"\n{data}rename = {{ c = \"b\" }}\n{REWARD}");
    fails(&renamed, &["rows.csv:2: data.rename: there is no column `b`; the row has a, answer"]);
    fails(
        &format!("prompt = \"x\"\n{data}filter = \"b > 1\"\n{REWARD}"),
        &["rows.csv:2: data.filter, line 1: undefined value: `b`"],
    );
    fails(&format!("prompt = \"x\"\n[data]\npath = \"none.csv\"\n{REWARD}"), &["cannot open ./my-task/none.csv"]);
    let inline = "prompt = \"x\"\n[data]\nrows = [{ image = 3, answer = \"x\" }]\n";
    fails(&format!("{inline}{REWARD}"), &["taskset.toml data.rows:1: image: invalid type"]);
}

#[test]
fn a_path_without_a_taskset_says_what_is_missing() {
    let folder = with(SUMS);
    folder.write("empty/notes.txt", "");
    folder.write("both/taskset.toml", SUMS);
    folder.write("both/taskset.py", "");
    let refused = |id: &str| folder.run(&["eval", id]).expect(2);
    refused("./nowhere").says("there is no taskset at `./nowhere`").says("rollhouse init");
    refused("./empty").says("the folder `./empty` has no taskset.toml or taskset.py").says("rollhouse init");
    refused("empty").says("unknown taskset `empty`").says("there is a folder `empty`: write `./empty`");
    refused("My_Task").says("there is a folder `my-task`: write `./my-task`");
    refused("./both").says("has both taskset.toml and taskset.py");
    refused("wordl").says("did you mean `wordle`?");
}

#[test]
fn tasksets_of_ones_own_are_listed_and_described() {
    let folder = with(&format!("{SUMS}weight = 2\n[config]\nlanguage = \"French\"\n"));
    folder.write("my-task/README.md", "# my-task\n\nA card.\n");
    folder.write("more/other/taskset.toml", "[data]\n");
    folder.run(&["tasksets"]).expect(0).says("./my-task").says("2 tasks  Add two numbers").says("gsm8k");
    folder.run(&["tasksets", "list", "more"]).expect(0).says("./more/other").says("has faults");
    let done = folder.run(&["tasksets", "describe", "./my-task"]).expect(0);
    done.says("A card.").says("correct  weight 2").says("--language").says("my-task: 2 tasks");
    folder.run(&["tasksets", "scorers"]).expect(0).says("exact");
}

#[test]
fn a_resume_says_which_files_of_the_taskset_have_changed() {
    let folder = with(SUMS);
    folder.write("my-task/README.md", "# a card");
    folder.run(&["eval", "./my-task", "-n", "1", "--run.name", "one"]).expect(0);
    let state: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("outputs/one/run.json")).unwrap()).unwrap();
    assert_eq!(state["taskset_files"].as_object().unwrap().keys().collect::<Vec<_>>(), ["taskset.toml"]);
    folder.write("my-task/README.md", "# another card");
    let same = folder.run(&["eval", "--resume", "outputs/one"]).expect(0);
    assert!(!same.stderr.contains("has changed"), "{same:#?}");
    folder.write("my-task/taskset.toml", &SUMS.replace("strip_think", "trim"));
    folder.write("my-task/helper.py", "");
    let done = folder.run(&["eval", "--resume", "outputs/one"]).expect(0);
    done.says("warning: the taskset has changed since the run began: helper.py, taskset.toml");
}

#[test]
fn another_system_prompt_does_not_confuse_the_perfect_player() {
    let folder = with(&format!("system_prompt = \"Add.\"\n{SUMS}"));
    folder.write("system.txt", "Add, please.");
    let flags = ["eval", "./my-task", "-r", "10", "--env.taskset.system_prompt", "system.txt", "--json"];
    let results = folder.run(&flags).expect(0).json();
    assert!(results["reward"]["mean"].as_f64().unwrap() > 0.3, "{results:#}");
}

#[test]
fn every_example_of_the_authors_page_is_a_taskset() {
    let page = include_str!("../tasksets/DECLARATIVE.md");
    let examples = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let whole: Vec<&str> = examples.filter(|example| example.contains("[data]")).collect();
    assert!(whole.len() > 4, "the examples were not found");
    for example in whole {
        with(example).run(&["tasksets", "describe", "./my-task"]).expect(0);
    }
}

#[test]
fn a_table_from_a_spreadsheet_is_read_and_an_open_quote_is_not() {
    let folder = with(&format!("prompt = \"{{{{ Straße }}}}?\"\n[data]\npath = \"rows.csv\"\n{REWARD}"));
    folder.write("my-task/rows.csv", "\u{feff}Straße;answer\r\n\"a; \"\"b\"\"\";1,5\r\n");
    assert_eq!(shown(&folder)[0]["prompt"], "a; \"b\"?");
    folder.write("my-task/rows.csv", "Straße,answer\na,1\nb,\"2\nc,3\n");
    folder
        .run(&["tasksets", "show", "./my-task"])
        .expect(1)
        .says("rows.csv:3: a quoted cell begins here and never ends");
}

#[test]
fn a_json_file_may_be_one_list_in_any_order() {
    let list = "[\n {\"question\": \"a\", \"answer\": \"1\"},\n {\"question\": \"b\", \"answer\": \"2\"},\n {\"question\": \"c\",\n \"answer\": \"3\"}\n]\n";
    let prompts = |sample: &str, text: &str| {
        let folder = with(&format!("[data]\npath = \"rows.json\"\n{sample}{REWARD}"));
        folder.write("my-task/rows.json", text);
        shown(&folder).iter().map(|task| task["prompt"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(prompts("", list), ["a", "b", "c"]);
    let mut shuffled = ["a", "b", "c"];
    PythonRandom::new(1).shuffle(&mut shuffled);
    assert_eq!(prompts("shuffle = true\nseed = 1\n", list), shuffled);
    assert_eq!(prompts("", "{\"question\": \"a\"}\n{\"question\": \"b\"}\n"), ["a", "b"]);
    let folder = with(&format!("[data]\npath = \"rows.json\"\n{REWARD}"));
    folder.write("my-task/rows.json", &list.replace("\"b\"", "b"));
    folder.run(&["tasksets", "show", "./my-task"]).expect(1).says("rows.json:3: not valid JSON at column ");
}

#[test]
fn text_of_a_table_is_not_compared_with_a_number() {
    let kept = |filter: &str| {
        let folder = with(&format!("prompt = \"x\"\n[data]\npath = \"rows.csv\"\nfilter = \"{filter}\"\n{REWARD}"));
        folder.write("my-task/rows.csv", "level,answer\n1,a\n5,b\n");
        folder
    };
    let refused = kept("level > 3").run(&["tasksets", "show", "./my-task"]).expect(1);
    refused.says("rows.csv:2: data.filter, line 1: `level` is text and is compared with a number; write `level | int`");
    assert_eq!(shown(&kept("level | int > 3"))[0]["answer"], "b");
}

#[test]
fn a_template_that_never_ends_is_given_up() {
    let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    let huge = "{% for a in range(1000) %}{{ 'x' * 1000000 }}{% endfor %}";
    for (template, problem) in [(endless, "takes more than 5000000 steps"), (huge, "writes more than 64 MiB")] {
        let folder = with(&format!("prompt = \"{template}\"\n[data]\nrows = [{{ answer = \"1\" }}]\n{REWARD}"));
        folder.run(&["tasksets", "show", "./my-task"]).expect(1).says("data.rows:1: prompt, line 1: ").says(problem);
    }
}

#[test]
fn what_is_empty_is_refused_where_it_stands() {
    let refused = |text: &str| with(text).run(&["eval", "./my-task"]).expect(2);
    let data = "[data]\nrows = [{ answer = \"1\" }]\n";
    refused("").says("./my-task/taskset.toml:1:1: data: missing").says("taskset.toml:1:1: reward: nothing scores");
    refused(&format!("prompt = \"x\"\nreward = []\n{data}")).says("taskset.toml:2:10: reward: nothing scores a reply");
    refused(&format!("prompt = []\n{data}{REWARD}")).says("prompt: there is no message in it");
    refused(&format!("prompt = \"x\"\n{data}[user]\nturns = []\n{REWARD}")).says("user.turns: there is no text in it");
    refused(&format!("prompt = \"x\"\n[data]\npath = \"\"\n{REWARD}")).says("data.path: is empty; name a file");
    let judge = "[[judge]]\nname = \"correct\"\nprompt = \"{{ reply }}\"\n";
    refused(&format!("prompt = \"x\"\n{data}{REWARD}{judge}")).says("judge[0].name: the name `correct` is taken");
    let own = "[config]\nk = 1\n[[reward]]\nscorer = \"number\"\nexpected_template = \"{{ config.k }}\"\n";
    refused(&format!("prompt = \"x\"\n{data}{own}")).says("reward[0].expected_template: `config` is not known here");
    let folder = with(&format!("[data]\npath = \"rows.jsonl\"\n{REWARD}"));
    folder.write("my-task/rows.jsonl", "{\"prompt\": []}\n");
    folder.run(&["eval", "./my-task"]).expect(1).says("rows.jsonl:1: `prompt` is a list without a message");
    let folder = with(&format!("prompt = \"x\"\nid = \"\"\n{data}{REWARD}"));
    folder.run(&["eval", "./my-task"]).expect(1).says("data.rows:1: `id` is empty");
}

#[test]
fn the_perfect_reply_is_what_the_first_reward_wants() {
    let full = |rewards: &str| {
        let data = "prompt = \"{{ q }}\"\n[data]\nrows = [{ q = \"a\", right = 1 }, { q = \"b\", right = 2 }]\n";
        assert_eq!(played(&with(&format!("{data}{rewards}")), &[])["reward"]["mean"], 1.0, "{rewards}");
    };
    full("[[reward]]\nscorer = \"number\"\nexpected = \"right\"\nparse = [\"boxed\"]\n");
    full("[[reward]]\nscorer = \"number\"\nexpected_template = \"{{ right + 1 }}\"\n");
    full("[[metric]]\nscorer = \"count\"\n[[reward]]\nscorer = \"one_of\"\nchoices = [\"yes\", \"no\"]\n");
    full(
        "[[reward]]\nname = \"not\"\nscorer = \"exact\"\nexpected_text = \"x\"\ninvert = true\nweight = 0.5\n[[reward]]\n\
         scorer = \"all_of\"\nweight = 0.5\nof = [{ scorer = \"parses\" }, { scorer = \"exact\", expected = \"right\" }]\n",
    );
}

#[test]
fn a_scorer_of_form_sees_the_whole_reply() {
    let folder = with(
        "prompt = \"x\"\nparse = [{ tag = \"answer\" }]\n[data]\nrows = [{ answer = \"A\" }]\n[[reward]]\nscorer = \"exact\"\n\
         [[reward]]\nscorer = \"tags\"\ntags = [\"answer\"]\nweight = 0.2\n",
    );
    assert_eq!(played(&folder, &[])["rewards"]["tags"]["mean"], 1.0);
}

#[test]
fn a_judge_of_a_declaration_is_asked_and_gives_full_marks_in_the_simulator() {
    let judge = "[[judge]]\nname = \"helpful\"\nweight = 0.5\nverdict = \"scale\"\nscale = [0, 10]\n\
                 prompt = \"{{ q }}\\n{{ reply }}\\nHow helpful is it?\"\n";
    let folder =
        with(&format!("prompt = \"{{{{ q }}}}\"\n[data]\nrows = [{{ q = \"a\", answer = \"1\" }}]\n{REWARD}{judge}"));
    let results = folder.run(&["eval", "./my-task", "-r", "3", "--json"]).expect(0).json();
    assert_eq!(results["rewards"]["helpful"]["mean"], 1.0, "{results:#}");
    assert_eq!(results["failed"], 0);
}

#[test]
fn a_weight_for_no_reward_is_named_where_it_stands() {
    let folder = with(SUMS);
    let config = "[env.taskset]\nid = \"./my-task\"\n[env.taskset.task.rewards]\ncorect.weight = 2\n";
    folder.write("run.toml", config);
    let done = folder.run(&["eval", "@", "run.toml"]).expect(2);
    done.says("run.toml:4:1: env.taskset.task.rewards.corect: there is no reward `corect`")
        .says("did you mean `correct`?");
}

#[test]
fn a_run_goes_on_however_its_taskset_is_written() {
    let folder = with(SUMS);
    folder.run(&["eval", "./my-task", "--run.name", "one"]).expect(0);
    let whole = folder.path().join("my-task/");
    for id in ["my-task", "./my-task/", "my-task/taskset.toml", "./my-task/../my-task", whole.to_str().unwrap()] {
        folder.run(&["eval", id, "--resume", "outputs/one"]).expect(0);
    }
    folder.write("other/taskset.toml", SUMS);
    folder.run(&["eval", "./other", "--resume", "outputs/one"]).expect(2).says("env.taskset.id");
}

#[test]
fn a_folder_that_is_not_there_lists_nothing_and_says_so() {
    let folder = with(SUMS);
    folder.write("both/taskset.toml", SUMS);
    folder.write("both/taskset.py", "");
    folder.run(&["tasksets", "list", "nowhere"]).expect(2).says("cannot look into `nowhere`");
    let listed = folder.run(&["tasksets"]).expect(0);
    assert!(
        listed.stdout.lines().any(|line| line.starts_with("./both ") && line.contains("has faults")),
        "{listed:#?}"
    );
}

/// The keys of the tasks of a taskset in a folder, in order.
fn keys(folder: &Folder) -> Result<Vec<String>, String> {
    use futures::TryStreamExt as _;
    let path = folder.path().join("my-task");
    let found = tasksets::find(path.to_str().unwrap()).map_err(|error| error.to_string())?;
    let taskset = (found.open)(&mut Reader::new(Document::default()).root()).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tasks: Vec<_> = runtime.block_on(taskset.tasks().try_collect()).map_err(|error| error.to_string())?;
    Ok(tasks.iter().map(|task| task.hash.clone().unwrap()).collect())
}

fn csv_cell(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_same_rows_are_the_same_tasks_in_every_form(
        rows in prop::collection::vec(("[^\\x00-\\x1f\\x7f]{1,20}", "[ -~é\n]{1,12}"), 1..6),
        seed in prop::option::of(0_u64..9),
    ) {
        let sample = seed.map_or_else(String::new, |seed| format!("shuffle = true\nseed = {seed}\n"));
        let tail = format!("{sample}{REWARD}");
        let head = "prompt = \"<{{ q }}>\"\n[data]\n";
        let inline: Vec<Value> = rows.iter().map(|(q, answer)| json!({ "q": q, "answer": answer })).collect();
        // A TOML string is a JSON string, but for what JSON leaves out of its escapes.
        let tables: Vec<String> =
            rows.iter().map(|(q, answer)| format!("{{ q = {}, answer = {} }}", json!(q), json!(answer))).collect();
        let first = keys(&with(&format!("{head}rows = [{}]\n{tail}", tables.join(", "))));
        let lines = with(&format!("{head}path = \"rows.jsonl\"\n{tail}"));
        lines.write("my-task/rows.jsonl", &inline.iter().map(|row| format!("{row}\n")).collect::<String>());
        let table = with(&format!("{head}path = \"rows.csv\"\n{tail}"));
        let cells = rows.iter().map(|(q, answer)| format!("{},{}\n", csv_cell(q), csv_cell(answer)));
        table.write("my-task/rows.csv", &format!("q,answer\n{}", cells.collect::<String>()));
        prop_assert!(first.is_ok(), "{first:?}");
        prop_assert_eq!(&first, &keys(&lines));
        prop_assert_eq!(&first, &keys(&table));
    }
}
