use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

#[test]
fn equal() {
    let pairs = [
        ("1/2", "0.5"),
        (r"\frac{1}{2}", "1/2"),
        (r"\dfrac12", r"\frac{1}{2}"),
        ("1,234", "1234"),
        ("1{,}234.50", "1234.5"),
        ("x+1", "1+x"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt2}{2}"),
        (r"\frac{1}{1+\sqrt{2}}", r"\sqrt{2}-1"),
        ("50%", "0.5"),
        (r"90^\circ", "90"),
        (r"2\frac{1}{2}", "2.5"),
        ("1 1/2", "3/2"),
        (r"\left(1, 2\right)", "(1,2)"),
        (r"\{1,2,3\}", "3, 2, 1"),
        ("[0, 1)", r"\left[0,1\right)"),
        ("x = 5", "5"),
        (r"(-\infty, 3] \cup (5, \infty)", r"(5,\infty) \cup (-\infty,3]"),
        (r"\text{Tuesday}", "tuesday"),
        (r"\text{(A)}", "A"),
        ("2^10", "1024"),
        ("10^{30}", "1000000000000000000000000000000"),
        (r"\sqrt[3]{-8}", "-2"),
        ("3+4i", "4i+3"),
        ("(2+i)(2-i)", "5"),
        (r"\pi r^2", r"r^2\pi"),
        ("2x=4", "x=2"),
        ("5!", "120"),
        (r"\log_2 8", r"\log_{2}(8)"),
        (r"\boxed{7}", "7."),
        ("$x^2$", "x**2"),
        (r"|{-3}|", "3"),
        ("6.02e2", "602"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        (r"\frac{3\pi}{4}", "0.75π"),
        ("(sqrt(x+1))^2", "x+1"),
        (r"\sqrt{12}+\sqrt{27}", r"5\sqrt3"),
        ("-(-2)", "2"),
        ("-2^2", "-4"),
    ];
    for (left, right) in pairs {
        assert_eq!(equivalent(left, right), Equivalence::Equal, "{left}  {right}");
        assert_eq!(equivalent(right, left), Equivalence::Equal, "{right}  {left}");
    }
}

#[test]
fn different() {
    let pairs = [
        ("1/3", "0.333"),
        ("x+1", "x-1"),
        ("(1,2)", "(2,1)"),
        ("(0,1)", "[0,1]"),
        ("{1,2}", "{1,2,3}"),
        (r"\sqrt{2}", "1.414"),
        (r"\pi", "3.14"),
        ("10^30", "10^30+1"),
        ("5", "-5"),
        ("Monday", "Tuesday"),
        ("x=5", "y=6"),
        ("3+4i", "3-4i"),
        ("1/x", "x"),
        (r"\sin x", r"\cos x"),
        ("50%", "50"),
        (r"\infty", r"-\infty"),
        ("2", "(2,3)"),
        ("A", "B"),
    ];
    for (left, right) in pairs {
        assert_eq!(equivalent(left, right), Equivalence::Different, "{left}  {right}");
    }
}

#[test]
fn undecided_is_not_equal() {
    for (left, right) in
        [("sin(x)^2+cos(x)^2", "1"), (r"\pm 2", "2"), ("", ""), ("1/0", "1/0+1"), ("((((", "1"), (r"\sin^{-1} x", "x")]
    {
        assert!(
            matches!(equivalent(left, right), Equivalence::Undecided(_)),
            "{left}  {right}: {:?}",
            equivalent(left, right)
        );
    }
}

#[test]
fn units_are_dropped_when_asked_for() {
    let reading = Reading { drop_units: true };
    for answer in [r"5\text{ cm}", "5 cm", r"5\,\mathrm{cm}", r"5 \text{ cm}^2", "5"] {
        assert_eq!(equivalent_as(answer, "5", reading), Equivalence::Equal, "{answer}");
    }
    assert_ne!(equivalent("5 cm", "5"), Equivalence::Equal);
    assert_ne!(equivalent_as("5 x", "5", reading), Equivalence::Equal);
}

#[test]
fn hostile_input_costs_little() {
    let deep = format!("{}1{}", "(".repeat(2000), ")".repeat(2000));
    let sets = format!("{}1{}", "{".repeat(1900), "}".repeat(1900));
    let tower = "2^".repeat(1000) + "2";
    let inputs = [
        "10^10^10".to_owned(),
        "9^9^9^9".to_owned(),
        deep,
        sets,
        tower,
        "1".repeat(1_000_000),
        "(".repeat(4000),
        "(x+y+z+w)^60".to_owned(),
        "(x+1)(x+2)".repeat(300),
        "1e999999".to_owned(),
        "1000000!".to_owned(),
        "(1,".repeat(1300),
        "(a+b+c+d+e+f+g+h)^12/(a+b+c)^12".to_owned(),
        "-".repeat(4000),
        r"\frac".repeat(700),
        r"\sqrt{".repeat(600),
        "[(".repeat(24) + "1" + &")]".repeat(24),
        "\\sqrt{99999999999999999999999999999999999999999999}".to_owned(),
        "((1+sqrt(2)+sqrt(3)+sqrt(5)+sqrt(7))^20)^(1/3)".to_owned(),
        "1/(x+1)+1/(x+2)+1/(x+3)+1/(x+4)+1/(x+5)+1/(x+6)+1/(x+7)".repeat(9),
    ];
    for input in inputs {
        let begin = Instant::now();
        let result = equivalent(&input, "5");
        let short: String = input.chars().take(40).collect();
        assert_ne!(result, Equivalence::Equal, "{short}");
        assert!(begin.elapsed() < Duration::from_secs(2), "{short}: {:?}", begin.elapsed());
    }
}

proptest! {
    #[test]
    fn never_panics(text in "(\\\\frac|\\\\sqrt|\\\\text\\{a\\}|\\{|\\}|\\(|\\)|\\[|\\]|,|\\+|-|\\*|/|\\^|=|!|%|_|x|i|e|0|2|10|1/0|\\.|\\||é|sin |\\\\cup| ){0,14}") {
        let _ = equivalent(&text, "x");
    }

    #[test]
    fn arithmetic_is_that_of_fractions(a in -99_i64..99, b in 1_i64..99, c in -99_i64..99, d in 1_i64..99) {
        let sum = format!("{}/{}", a * d + c * b, b * d);
        prop_assert_eq!(equivalent(&format!("({a}/{b}) + ({c}/{d})"), &format!("({sum})")), Equivalence::Equal);
        prop_assert_eq!(equivalent(&format!("(x + {a})(x - {b})"), &format!("x^2 + ({}) x - ({})", a - b, a * b)), Equivalence::Equal);
        prop_assert_ne!(equivalent(&format!("\\frac{{{a}}}{{{b}}}"), &format!("{}/{b}", a + 1)), Equivalence::Equal);
    }
}
