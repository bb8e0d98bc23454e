//! What every shipped taskset promises: the same tasks every time, a user and a rubric that work together, full marks for
//! a perfect player and none for silence.
#![allow(clippy::disallowed_methods, reason = "tests write the files that they read and ask Python")]

use std::{collections::HashSet, process::Command, sync::Arc};

use futures::{StreamExt, TryStreamExt};
use rollhouse::{
    config::{Document, Layer, Reader, Select},
    taskset::{Exchange, Found, PythonRandom, State, Task, Taskset, TasksetError, TasksetSize, UserTurn, select},
    tasksets::{find, shipped},
    trace::{AgentInfo, AssistantMessage, Message, Trace},
};
use serde_json::{Value, json, value::RawValue};

/// Opens a taskset with this configuration, which must be faultless.
fn open(found: impl Into<Found>, config: Value) -> Arc<dyn Taskset> {
    let layer = Layer::from_json("arguments", &config.to_string()).unwrap();
    let mut reader = Reader::new(Document::new([layer]));
    let taskset = (found.into().open)(&mut reader.root()).unwrap();
    reader.finish().unwrap();
    taskset
}

fn default_of(found: impl Into<Found>) -> Arc<dyn Taskset> {
    open(found, json!({}))
}

async fn first(taskset: &dyn Taskset, count: usize) -> Vec<Task> {
    taskset.tasks().take(count).try_collect().await.unwrap()
}

/// Holds the conversation of a task with a player, and scores it.
async fn play(taskset: &dyn Taskset, task: &Task, player: &dyn Fn(&[Message]) -> String) -> Trace {
    let agent = AgentInfo {
        config: Arc::from(RawValue::from_string("{}".to_owned()).unwrap()),
        runtime: None,
        name: "agent".to_owned(),
        trainable: true,
    };
    let mut trace = Trace::new(Arc::clone(task), agent);
    let mut conversation = task.data.opening();
    let mut user = taskset.user(task);
    for _ in 0..100 {
        let reply = AssistantMessage { content: Some(player(&conversation)), ..AssistantMessage::default() };
        let turn = trace.graph.prepare(&conversation, Arc::from([]));
        trace.graph.commit(turn, reply.clone(), None).unwrap();
        conversation.push(Message::Assistant(reply));
        let Some(user) = &mut user else { break };
        match user.reply(Exchange { conversation: &conversation, state: &mut State::new() }).await.unwrap() {
            UserTurn::Say(messages) => conversation.extend(messages),
            UserTurn::Close => break,
        }
    }
    taskset.rubric().score(&mut trace).await.unwrap();
    trace
}

fn oracle(taskset: &dyn Taskset) -> impl Fn(&[Message]) -> String {
    |conversation| {
        taskset.solve(conversation).unwrap_or_else(|| {
            let opening = conversation.first().map(Message::text).unwrap_or_default();
            panic!("`solve` must answer every conversation of its own taskset; it has no answer to one that opens with: {opening}")
        })
    }
}

#[tokio::test]
async fn two_loads_give_the_same_tasks_from_any_position() {
    for shipped in shipped() {
        let tasks = first(&*default_of(shipped), 120).await;
        assert_eq!(first(&*default_of(shipped), 120).await, tasks, "{}", shipped.id);
        let later: Vec<Task> = default_of(shipped).tasks_from(50).take(70).try_collect().await.unwrap();
        assert_eq!(later, tasks[50..], "{}", shipped.id);
        let positions: Vec<Option<u64>> = tasks.iter().map(|task| task.data.idx).collect();
        assert_eq!(positions, (0..120).map(Some).collect::<Vec<_>>(), "{}", shipped.id);
    }
}

#[tokio::test]
async fn keys_are_unique_and_rows_survive_a_round_trip() {
    for shipped in shipped() {
        let tasks = first(&*default_of(shipped), 500).await;
        let keys: HashSet<&str> = tasks.iter().filter_map(|task| task.key.as_deref()).collect();
        assert_eq!(keys.len(), tasks.len(), "{}", shipped.id);
        for task in tasks.iter().take(20) {
            let read: rollhouse::trace::TraceTask =
                serde_json::from_str(&serde_json::to_string(&**task).unwrap()).unwrap();
            assert_eq!(read, **task, "{}", shipped.id);
            assert_eq!(task.hash.as_deref(), Some(read.data.hash().as_str()), "{}", shipped.id);
        }
    }
}

#[tokio::test]
async fn a_perfect_player_earns_exactly_1_and_each_reward_says_why() {
    for shipped in shipped() {
        let taskset = default_of(shipped);
        for task in first(&*taskset, 60).await {
            let trace = play(&*taskset, &task, &oracle(&*taskset)).await;
            assert_eq!(trace.reward(), 1.0, "{}: {:?}", shipped.id, trace.info);
            for name in trace.rewards.keys() {
                assert!(trace.info["scoring"][name].is_string(), "{}: {name} gives no reason", shipped.id);
            }
        }
    }
}

#[tokio::test]
async fn perfect_players_of_longer_games_earn_1_too() {
    let games = [
        ("alphabet-sort", json!({"min_turns": 5, "max_turns": 5, "min_names_per_turn": 3, "power_per_turn": false})),
        ("color-codeword", json!({"num_turns": 3, "max_letters": 12})),
        ("wordle", json!({"max_guesses": 12, "any_word": true})),
        ("reverse-text", json!({"min_words": 40, "max_words": 60})),
    ];
    for (id, config) in games {
        let taskset = open(find(id).unwrap(), config);
        for task in first(&*taskset, 10).await {
            let trace = play(&*taskset, &task, &oracle(&*taskset)).await;
            assert_eq!(trace.reward(), 1.0, "{id}: {:?}", trace.info);
        }
    }
}

#[tokio::test]
async fn silence_earns_nothing_and_wrong_answers_not_everything() {
    for shipped in shipped() {
        let taskset = default_of(shipped);
        for task in first(&*taskset, 20).await {
            for silent in ["", "I do not know.", "<think>The answer is near"] {
                let trace = play(&*taskset, &task, &|_| silent.to_owned()).await;
                assert_eq!(trace.reward(), 0.0, "{}: {silent:?}: {:?}", shipped.id, trace.info);
            }
            // The perfect answers without their last letter or digit, tags left as they are.
            let spoiled = |conversation: &[Message]| {
                let right = oracle(&*taskset)(conversation);
                let end = right.find("</").map_or(right.len(), |end| end);
                let content = right[..end].trim_end();
                format!("{}{}", &content[..content.len() - 1], &right[end..])
            };
            let trace = play(&*taskset, &task, &spoiled).await;
            assert!(trace.reward() < 1.0, "{}: {:?}", shipped.id, trace.info);
        }
    }
}

#[tokio::test]
async fn malformed_tags_earn_nothing() {
    for id in ["reverse-text", "color-codeword", "wordle"] {
        let taskset = default_of(find(id).unwrap());
        let task = &first(&*taskset, 1).await[0];
        let right = oracle(&*taskset);
        let malformed: [&dyn Fn(&str) -> String; 4] = [
            &|text| text.replace("</", "<"),
            &|text| text.replace("</", "</not_"),
            &|text| format!("```\n{text}\n```"),
            &|text| format!("{text}{text}"),
        ];
        for spoil in malformed {
            let trace = play(&*taskset, task, &|conversation| spoil(&right(conversation))).await;
            assert_eq!(trace.reward(), 0.0, "{id}: {:?}", trace.info);
        }
    }
}

/// A reply of hundreds of kilobytes, or one made to confuse the reader of tags, takes no more than moments and earns nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_replies_earn_nothing_and_are_scored_at_once() {
    let names: String = (0..15_000).map(|number| format!("<t{number}>")).collect();
    let ends: String = (0..15_000).map(|number| format!("</t{number}>")).collect();
    let wrapped = |tag: &str, content: &str| format!("<{tag}>{content}</{tag}>");
    let tags = [
        ("reverse-text", "reversed_text"),
        ("alphabet-sort", "alphabetical_sorted"),
        ("alphabet-sort", "combined_alphabetical_sorted"),
        ("color-codeword", "codeword"),
        ("gsm8k", "answer"),
        ("wordle", "guess"),
    ];
    for shipped in shipped() {
        let taskset = default_of(shipped);
        let task = &first(&*taskset, 1).await[0];
        for (_, tag) in tags.into_iter().filter(|(id, _)| *id == shipped.id) {
            let contents = [
                "the quick brown fox, ".repeat(15_000),
                format!("{}AnnaZell\n{}", "z\n".repeat(60_000), "q".repeat(60_000)),
                format!("{names}{ends}"),
                "\u{200b}".repeat(80_000),
                "#### ".repeat(60_000),
                "```\n".repeat(60_000),
                "\\boxed{".repeat(40_000),
                "1,".repeat(80_000),
                "NaN inf -Infinity 1e999999".to_owned(),
                "\u{0}\u{7}\u{1b}[31m\u{202e}".repeat(1000),
            ];
            for content in contents {
                let reply = wrapped(tag, &content);
                let begun = std::time::Instant::now();
                let trace = play(&*taskset, task, &|_| reply.clone()).await;
                let (took, begin) = (begun.elapsed(), reply.chars().take(40).collect::<String>());
                // Short texts have some letters in common with anything.
                let most = if reply.len() < 1000 { 0.3 } else { 0.02 };
                assert!(trace.reward() < most, "{}: {begin}: {:?}", shipped.id, trace.rewards);
                assert!(took.as_secs() < 10, "{}: {begin} took {took:?}", shipped.id);
                let reasons = serde_json::to_string(&trace.info).unwrap();
                assert!(reasons.len() < 20_000, "{}: {begin}: {} bytes of reasons", shipped.id, reasons.len());
            }
        }
    }
}

#[tokio::test]
async fn letters_and_digits_that_only_look_right_earn_nothing() {
    let swapped = |text: &str| {
        let map = |c: char| match c {
            'a' => 'а',
            'A' => 'А',
            'e' => 'е',
            'E' => 'Е',
            'o' => 'о',
            'O' => 'О',
            'S' => 'ſ',
            'K' => '\u{212a}',
            '0'..='9' => char::from_u32(c as u32 - 0x30 + 0xff10).unwrap(),
            other => other,
        };
        // Only what stands in the tags, or behind the marks.
        let begin = text.find('>').or(text.rfind("####")).map_or(0, |at| at + 1);
        let end = text.rfind("</").unwrap_or(text.len());
        format!("{}{}{}", &text[..begin], text[begin..end].chars().map(map).collect::<String>(), &text[end..])
    };
    for id in ["gsm8k", "wordle", "color-codeword"] {
        let taskset = default_of(find(id).unwrap());
        for task in first(&*taskset, 30).await {
            let right = oracle(&*taskset);
            let trace = play(&*taskset, &task, &|conversation| swapped(&right(conversation))).await;
            let replies =
                trace.graph.transcript().into_iter().filter(|message| matches!(message, Message::Assistant(_)));
            if replies.map(Message::text).all(|reply| swapped(&reply) != reply || !reply.is_ascii()) {
                assert!(trace.reward() < 0.5, "{id}: {:?}", trace.info);
            }
        }
    }
}

#[tokio::test]
async fn the_answer_does_not_stand_in_the_prompt() {
    for shipped in shipped() {
        let tasks = first(&*default_of(shipped), 500).await;
        for task in &tasks {
            // The instructions are the same for every task and tell nothing of this one.
            let opening = task.data.opening();
            let asked = opening.iter().filter(|message| !matches!(message, Message::System(_))).map(Message::text);
            let asked: Vec<String> = asked.collect();
            let asked = asked.join("\n");
            let extra = &task.data.extra;
            let secret = match (extra.get("ground_truths"), extra.get("answers"), extra.get("answer")) {
                (Some(lists), ..) => {
                    let names: Vec<&str> = lists[0].as_array().unwrap().iter().filter_map(Value::as_str).collect();
                    if names.len() < 2 {
                        continue;
                    }
                    names.join("\n")
                }
                (_, Some(words), _) => words[0].as_str().unwrap().to_owned(),
                (_, _, Some(answer)) => answer.as_str().unwrap().to_owned(),
                _ => panic!("{} has no answer", shipped.id),
            };
            let told = asked.match_indices(&secret).any(|(at, _)| {
                let before = asked[..at].chars().next_back();
                let after = asked[at + secret.len()..].chars().next();
                ![before, after].iter().flatten().any(|c| c.is_alphanumeric())
            });
            assert!(!told, "{}: {secret:?} stands in {asked:?}", shipped.id);
        }
    }
}

#[test]
fn every_card_tells_of_every_key_and_reward() {
    for shipped in shipped() {
        let card = shipped.readme;
        assert!(
            card.starts_with(&format!("# {}\n", shipped.id)),
            "the card of {0} must begin with `# {0}`",
            shipped.id
        );
        let command = format!("rollhouse eval {}", shipped.id);
        assert!(card.contains(&command), "the card of {} must show `{command}`", shipped.id);
        for name in default_of(shipped).rubric().names() {
            assert!(card.contains(&format!("| `{name}` |")), "the card of {} must have a row `{name}`", shipped.id);
        }
        let mut reader = Reader::new(Document::new([]));
        (shipped.open)(&mut reader.root()).unwrap();
        let mut rows = 0;
        for key in reader.keys() {
            let what = format!("{}: {}", shipped.id, key.path);
            assert!(!key.doc.is_empty(), "{what} has no meaning");
            let row = card.lines().find(|line| line.starts_with(&format!("| `{}` |", key.path)));
            let cells: Vec<&str> = row.unwrap_or_else(|| panic!("{what} is not in the card")).split('|').collect();
            let read = if key.default.is_null() { String::new() } else { key.default.to_string() };
            assert_eq!(cells[3].trim(), read.trim_matches('"'), "{what}");
            rows += 1;
        }
        let told = card.lines().skip_while(|line| !line.starts_with("| key |")).skip(2);
        assert_eq!(told.take_while(|line| line.starts_with('|')).count(), rows, "{}", shipped.id);
    }
}

#[test]
fn faults_of_a_configuration_are_recorded() {
    let refused = |id: &str, config: Value| {
        let layer = Layer::from_json("arguments", &config.to_string()).unwrap();
        let mut reader = Reader::new(Document::new([layer]));
        (find(id).unwrap().open)(&mut reader.root()).unwrap();
        reader.finish().err().map(|faults| faults.to_string()).unwrap_or_default()
    };
    assert!(refused("alphabet-sort", json!({"min_turns": 4})).contains("max_turns"));
    assert!(refused("alphabet-sort", json!({"max_turns": 50, "max_names_per_turn": 50})).contains("different names"));
    assert!(refused("alphabet-sort", json!({"min_turn": 1})).contains("min_turn"));
    assert!(refused("gsm8k", json!({"path": "a.jsonl", "dataset": "openai/gsm8k"})).contains("only one"));
    assert!(refused("wordle", json!({"num_tasks": 0})).contains("num_tasks"));
    assert!(refused("reverse-text", json!({"min_words": 0})).contains("min_words"));
}

#[tokio::test]
async fn rows_of_a_file_become_tasks_and_a_broken_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let gsm8k = |text: &str| {
        std::fs::write(&path, text).unwrap();
        open(find("gsm8k").unwrap(), json!({"path": path.to_str().unwrap()}))
    };
    let row = |question: &str, answer: &str| json!({"question": question, "answer": answer, "id": 7}).to_string();

    let two = format!("\u{feff}{}\r\n\r\n{}", row("1 + 1?", "#### 2"), row("3 + 3?", "Six.\n#### 6"));
    let tasks = first(&*gsm8k(&two), 5).await;
    let answers: Vec<&str> = tasks.iter().filter_map(|task| task.data.text("answer")).collect();
    assert_eq!(answers, ["2", "6"]);
    assert_eq!(tasks[0].data.id.as_deref(), Some("7"));

    let problem = async |text: &str| {
        let error = gsm8k(text).tasks().try_collect::<Vec<_>>().await.unwrap_err().to_string();
        error.strip_prefix(path.to_str().unwrap()).unwrap_or(&error).to_owned()
    };
    assert!(problem("{\"question\": \n").await.starts_with(":1: not valid JSON"));
    let good = row("1 + 1?", "#### 2");
    assert!(problem(&format!("{good}\n{{\"answer\": \"#### 1\"}}\n")).await.starts_with(":2: `question` is missing"));
    assert!(problem(&format!("{good}\n{}\n", row("?", "none"))).await.starts_with(":2: `answer` must end in"));
    assert_eq!(problem("{\"question\": 1}").await, ":1: `question` must be text, found a number");

    let nowhere = open(find("gsm8k").unwrap(), json!({"path": "/nowhere/rows.jsonl"}));
    let error = nowhere.tasks().try_collect::<Vec<_>>().await.unwrap_err();
    assert!(error.to_string().starts_with("cannot open /nowhere/rows.jsonl: "), "{error}");
}

#[tokio::test]
async fn gsm8k_takes_the_number_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    std::fs::write(&path, json!({"question": "How many?", "answer": "#### 1,234"}).to_string()).unwrap();
    let taskset = open(find("gsm8k").unwrap(), json!({"path": path.to_str().unwrap()}));
    let task = &first(&*taskset, 1).await[0];
    let cases = [
        ("#### 1234", 1.0),
        ("#### $1,234.00", 1.0),
        ("It is \\boxed{1{,}234} or \\boxed{1234}.", 1.0),
        ("1234", 1.0),
        ("The answer is 1,234.", 1.0),
        ("<think>#### 1234</think> #### 5", 0.0),
        ("#### 5, not 1235", 0.0),
        ("1234 #### ", 0.0),
        ("#### -1234", 0.0),
        ("12 34", 0.0),
    ];
    for (reply, expected) in cases {
        let trace = play(&*taskset, task, &|_| reply.to_owned()).await;
        assert_eq!(trace.reward(), expected, "{reply}: {:?}", trace.info);
    }
}

#[tokio::test]
async fn the_wordle_game_answers_what_is_no_guess() {
    let taskset = default_of(find("wordle").unwrap());
    let task = &first(&*taskset, 1).await[0];
    let mut user = taskset.user(task).unwrap();
    let mut conversation = task.data.opening();
    for (reply, expected) in [
        ("hello", "there is no `<guess>`"),
        ("<guess>toolong</guess>", "five letters"),
        ("<guess>qqqqq</guess>", "not in the word list"),
        ("<guess>tonic</guess>", "Your guess: T O N I C"),
        ("<guess>cabin</guess>", "One guess is left."),
    ] {
        conversation.push(Message::assistant(reply));
        let UserTurn::Say(said) =
            user.reply(Exchange { conversation: &conversation, state: &mut State::new() }).await.unwrap()
        else {
            panic!("the game ended")
        };
        assert!(said[0].text().contains(expected), "{}", said[0].text());
        conversation.extend(said);
    }
    conversation.push(Message::assistant("<guess>sixth</guess>"));
    assert_eq!(
        user.reply(Exchange { conversation: &conversation, state: &mut State::new() }).await.unwrap(),
        UserTurn::Close
    );
}

#[test]
fn an_unknown_name_is_refused_with_the_nearest() {
    assert_eq!(find("PrimeIntellect/Reverse_Text@0.1.4").map(|found| found.id), Ok("reverse-text".to_owned()));
    let error = find("alphabetsort").map(|found| found.id).unwrap_err();
    assert_eq!(error.to_string(), "unknown taskset `alphabetsort`: did you mean `alphabet-sort`?");
}

#[tokio::test]
async fn an_endless_taskset_must_be_bounded() {
    let endless = default_of(find("alphabet-sort").unwrap());
    assert_eq!(endless.size(), TasksetSize::Infinite);
    let refused = |select_with: Select| match select(&*endless, &select_with) {
        Err(TasksetError::Select(message)) => message,
        _ => String::new(),
    };
    assert!(refused(Select::default()).contains("`-n`"));
    assert!(refused(Select { shuffle: true, limit: Some(3), ..Select::default() }).contains("shuffled"));
    let bounded = open(find("alphabet-sort").unwrap(), json!({"num_tasks": 50}));
    let shuffled = Select { shuffle: true, limit: Some(3), ..Select::default() };
    let tasks: Vec<Task> = select(&*bounded, &shuffled).unwrap().try_collect().await.unwrap();
    assert_eq!(tasks.len(), 3);
}

#[test]
fn shuffles_equal_pythons_recorded_ones() {
    let recorded: Vec<Value> = serde_json::from_str(include_str!("vectors/python_shuffle.json")).unwrap();
    for case in recorded {
        let mut shuffled: Vec<u64> = (0..case["count"].as_u64().unwrap()).collect();
        PythonRandom::new(case["seed"].as_u64().unwrap()).shuffle(&mut shuffled);
        assert_eq!(json!(shuffled), case["shuffled"], "seed {}", case["seed"]);
    }
}

#[test]
fn draws_equal_pythons() {
    let python = std::env::var("ROLLHOUSE_TEST_PYTHON").expect("run tests through `tests/run`, which sets up Python");
    let program = "
import json, random
rows = []
for seed in [0, 1, 7, 2**31, 2**32 - 1, 2**32, 2**53, 2**64 - 1, 2**64 * 6 + 5, 2**64 * 2**32 + 9]:
    draw = random.Random(seed)
    items = list(range(3000))
    draw.shuffle(items)
    rows.append([items, [draw.randrange(1 + 3 ** i) for i in range(40)], draw.randint(5, 9), draw.choice(items)])
print(json.dumps(rows))
";
    let output = Command::new(python).args(["-c", program]).output().unwrap();
    let rows: Vec<(Vec<u64>, Vec<u64>, u64, u64)> = serde_json::from_slice(&output.stdout).unwrap();
    let mut randoms: Vec<PythonRandom> =
        [0, 1, 7, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, u64::MAX].map(PythonRandom::new).into();
    randoms.extend([PythonRandom::at(5, 5), PythonRandom::at(9, (1 << 32) - 1)]);
    assert_eq!(rows.len(), randoms.len());
    for (mut random, (shuffled, below, between, chosen)) in randoms.into_iter().zip(rows) {
        let mut items: Vec<u64> = (0..3000).collect();
        random.shuffle(&mut items);
        assert_eq!(items, shuffled);
        assert_eq!((0..40).map(|i| random.below(1 + 3_u64.pow(i))).collect::<Vec<_>>(), below);
        assert_eq!(random.between(5, 9), between);
        assert_eq!(*random.choose(&items), chosen);
    }
}
