//! Laws of the whole crate: bounds for any expression, and properties that callers rely on. The corpus `tests/corpus`
//! covers the meaning of single expressions.

use super::{Budget, COST_PER_EXPRESSION, Dialect, Expression, Failure, Gives, Variables};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn compile(source: &str) -> Expression {
    Expression::compile(source, Gives::Bool, Dialect::NEWEST).unwrap_or_else(|error| panic!("{source}: {error}"))
}

fn test(source: &str, object: &Value) -> Result<bool, Failure> {
    compile(source).test(&Variables { object, namespace: None, template: None }, &mut Budget::validations())
}

fn refusal(source: &str) -> String {
    Expression::compile(source, Gives::Bool, Dialect::NEWEST).map(|_| ()).expect_err(source).to_string()
}

/// Long enough for a debug build on a busy machine. A release build needs a twentieth.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a test on a thread with a stack as small as those of tokio's workers.
fn on_a_small_stack(run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
    thread.expect("a thread").join().expect("no panic and no overflow");
}

#[test]
fn an_expression_can_be_used_by_several_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Expression>();
}

#[test]
fn a_message_gives_a_text_and_nothing_else() {
    let object = json!({ "metadata": { "name": "web" } });
    let variables = Variables { object: &object, namespace: None, template: None };
    let message =
        Expression::compile("'no ' + object.metadata.name", Gives::String, Dialect::NEWEST).expect("a message");
    assert_eq!(message.source(), "'no ' + object.metadata.name");
    assert_eq!(message.text(&variables, &mut Budget::validations()), Ok("no web".to_owned()));
    assert_eq!(message.test(&variables, &mut Budget::validations()), Err(Failure::no_such_overload()));
    for (source, refused) in [
        ("1", "1:1: must evaluate to string but got int"),
        ("object.metadata.name", "1:7: must evaluate to string but got dyn; convert it, as in `string(…)`"),
    ] {
        let error = Expression::compile(source, Gives::String, Dialect::NEWEST).map(|_| ()).expect_err(source);
        assert!(error.to_string().contains(refused.split_once(' ').expect("a space").1), "{error}");
    }
}

#[test]
fn faults_say_where_they_are_and_what_was_meant() {
    for (source, fault) in [
        ("objekt.spec == 1", "1:1: undeclared reference to 'objekt' (in container ''), did you mean 'object'?"),
        ("request.name == ''", "the variables are 'object', 'namespaceObject'"),
        (
            "true &&\n  'a'.startWith('b')",
            "2:6: undeclared reference to 'startWith' (in container ''), did you mean 'startsWith'?",
        ),
        ("'é' == 1", "1:5: found no matching overload for '_==_' applied to '(string, int)'"),
        ("'a'.startsWith(1)", "applied to 'string.(int)'; it takes string.startsWith(string)"),
        ("quantity('1').sign() == 1", "it takes (kubernetes.Quantity)"),
        ("[1, 'a'] == []", "1:5: expected type 'int' but found 'string'"),
        ("namespaceObject.kind == ''", "undefined field 'kind': kubernetes.Namespace has metadata, spec, status"),
        ("object.spec.on", "must evaluate to bool but got dyn; compare it, as in `… == true`"),
        ("1 +", "1:4: Syntax error: found the end, expected a value"),
        ("(1 == 1", "Syntax error: found the end, expected ')'"),
        ("object.spec.for(x, y) ? a : b c", "Syntax error: found 'c'"),
    ] {
        let error = refusal(source);
        assert!(error.contains(fault), "{source}: {error}");
    }
}

#[test]
fn failures_are_told_as_the_server_tells_them() {
    let object = json!({ "list": [1], "text": "a" });
    for (source, failure) in [
        ("object.foo == 1", "no such key: foo"),
        ("object.list[3] == 1", "index out of bounds: 3"),
        ("object.text + 1 == 1", "no such overload"),
        ("1 / 0 == 1", "division by zero"),
        ("lists.range(2000000) == []", "operation cancelled: actual cost limit exceeded"),
    ] {
        assert_eq!(test(source, &object).map_err(|failure| failure.to_string()), Err(failure.to_owned()), "{source}");
    }
}

#[test]
fn what_expressions_cost_together_is_bounded() {
    let expression = compile("lists.range(1000).all(x, x >= 0)");
    let variables = Variables { object: &Value::Null, namespace: None, template: None };
    let mut budget = Budget::new(10_000);
    let mut runs = 0;
    while expression.test(&variables, &mut budget) == Ok(true) {
        runs += 1;
        assert!(runs < 10, "it is paid for");
    }
    assert_eq!((runs, budget.left()), (3, 0));
}

#[test]
fn depth_is_bounded_and_no_stack_overflows() {
    on_a_small_stack(|| {
        let nested = |open: &str, inner: &str, close: &str, depth: usize| {
            format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
        };
        for (depth, is_taken) in [(200, true), (300, false), (20_000, false)] {
            for (source, is_limited) in [
                (nested("(", "true", ")", depth), true),
                (format!("{} != []", nested("[", "", "]", depth)), true),
                (format!("{} != {{}}", nested("{1:", "1", "}", depth)), true),
                (format!("{}.hasValue()", nested("optional.of(", "1", ")", depth)), true),
                (nested("[1].all(x, ", "true", ")", depth), true),
                (nested("!(", "true", ")", depth / 2 * 2), true),
                (format!("{} > 0", nested("-(", "1", ")", depth / 2 * 2)), true),
                (format!("{}1 > 0", "1 + ".repeat(depth)), true),
                (format!("{}true", "true ? true : ".repeat(depth)), true),
                (format!("dyn([]){} == []", ".reverse()".repeat(depth)), true),
                (format!("dyn([[1]]){} != []", ".map(x, [x])".repeat(depth)), true),
                (format!("has(object{}.b) || true", ".?a".repeat(depth)), true),
                (format!("{}true", "true && ".repeat(depth)), false),
                (format!("{}true", "false || ".repeat(depth)), false),
                (format!("{}1 != 2", "-".repeat(depth)), false),
            ] {
                if source.len() > 90_000 {
                    continue;
                }
                match Expression::compile(&source, Gives::Bool, Dialect::NEWEST) {
                    Ok(expression) => {
                        assert!(is_taken || !is_limited, "{}", &source[..80]);
                        let variables = Variables { object: &json!({}), namespace: None, template: None };
                        let verdict = expression.test(&variables, &mut Budget::validations());
                        let shown = &source[..source.len().min(80)];
                        assert!(matches!(verdict, Ok(true) | Err(Failure::CostExceeded)), "{shown}: {verdict:?}");
                    }
                    Err(error) => {
                        assert!(!is_taken && error.message.contains("recursion limit"), "{}: {error}", &source[..80]);
                    }
                }
            }
        }
    });
}

#[test]
fn values_that_an_expression_builds_are_bounded_in_depth() {
    on_a_small_stack(|| {
        // Each step wraps the result of the previous one.
        let step = format!(".map(x, {}x{})", "[".repeat(100), "]".repeat(100));
        let source = format!("[1]{} != []", step.repeat(50));
        let failure = test(&source, &json!({})).map_err(|failure| failure.to_string());
        assert_eq!(failure, Err("the value is nested too deep".to_owned()));
    });
}

#[test]
fn objects_may_be_as_deep_as_json_is_read() {
    on_a_small_stack(|| {
        let text = format!("{}{}", "[".repeat(127), "]".repeat(127));
        let object: Value = serde_json::from_str(&text).expect("JSON");
        for source in
            ["object == object", "'%s'.format([object]) != ''", "object.flatten(1000) == []", "object in [object]"]
        {
            assert_eq!(test(source, &object), Ok(true), "{source}");
        }
    });
}

#[test]
fn a_long_source_is_refused() {
    assert!(refusal(&format!("'{}' == ''", "a".repeat(100_000))).contains("size exceeds limit"));
    assert!(test(&format!("'{}' != ''", "a".repeat(99_900)), &json!({})).is_ok());
}

/// Expressions that are expensive on the object of [`hostile_expressions_end`].
const HOSTILE: &[&str] = &[
    "lists.range(1000).all(x, lists.range(1000).all(y, x + y >= 0))",
    "lists.range(900000).size() > 0",
    "object.list.all(x, object.list.all(y, true))",
    "object.list.all(x, x in object.list)",
    "object.words.all(x, object.words.all(y, x == y))",
    "object.list.map(x, object == object) != []",
    "object.list.distinct().size() > 0",
    "object.list.sort().size() > 0",
    "object.list.sortBy(x, -x).size() > 0",
    "object.map.all(k, object.map == object.map)",
    "object.list.map(x, object.list + object.list) != []",
    "[1].map(a, object.list + object.list).map(b, b + b).map(c, c + c).map(d, d + d).map(e, e + e).map(f, f + f) != []",
    "[object.text].map(a, a + a).map(b, b + b).map(c, c + c).map(d, d + d).map(e, e + e).map(f, f + f) != []",
    "object.text.replace('a', object.text) != ''",
    "object.text.replace('', object.text) != ''",
    "object.text.split('').size() > 0",
    "object.text.split('').map(x, object.text.split('')) != []",
    "object.words.map(x, object.text.contains(x)) != []",
    "object.text.matches('^(a+)+$')",
    "object.text.matches('[ab]*a[ab]{1000}c')",
    "object.text.matches('(a*)*(a*)*(a*)*b')",
    "object.text.findAll('a').size() > 0",
    "object.text.findAll('').size() > 0",
    "object.patterns.all(p, !object.text.matches(p))",
    "object.patterns.all(p, !'ab'.matches(p))",
    "object.list.all(x, 'a'.matches('a{' + string(x % 1000) + '}') || true)",
    "'%.1000000f'.format([1.5]) != ''",
    "lists.range(1000).map(x, '%.100000f'.format([1.5])) != []",
    "'%s'.format([object]) != ''",
    "lists.range(1000).map(x, '%s'.format([object.words])) != []",
    "object.words.join(object.text) != ''",
    "object.list.map(x, object.text.size()) != []",
    "object.list.map(x, object.text.lowerAscii()) != []",
    "object.list.map(x, object.text.charAt(1000000)) != []",
    "object.list.map(x, object.text.lastIndexOf('b')) != []",
    "object.list.map(x, object.map.transformMap(k, v, v)) != []",
    "object.list.map(x, object.list.slice(0, 100000)) != []",
    "sets.equivalent(object.list, object.list.reverse())",
    "object.list.map(x, [x, x].map(y, [y, y])).flatten(9) != []",
    "object.list.map(x, isQuantity(object.text)) != []",
    "object.list.map(x, isURL('/' + object.text)) != []",
    "object.list.map(x, isSemver(object.text)) != []",
    "object.list.map(x, isIP(object.text)) != []",
    "object.list.map(x, format.dns1123Subdomain().validate(object.text).hasValue()) != []",
    "object.list.map(x, bytes(object.text)) != []",
    "object.list.map(x, strings.quote(object.text)) != []",
    "object.list.map(x, optional.of(object).hasValue()) != []",
    "object.list.all(x, has(object.list) && has(object.text) && has(object.map) && has(object.words))",
    "object.list.all(x, true ? (true ? (true ? (true ? true : true) : true) : true) : true)",
];

#[test]
fn hostile_expressions_end() {
    let object = json!({
        "text": "a".repeat(1 << 20),
        "list": (0..100_000).collect::<Vec<_>>(),
        "words": vec!["a".repeat(1000); 1000],
        "map": (0..20_000).map(|key| (key.to_string(), Value::from(key))).collect::<serde_json::Map<_, _>>(),
        "patterns": (0..1000).map(|index| format!("(a|b|[c-z]{{0,{index}}})*x{index}")).collect::<Vec<_>>(),
    });
    for source in HOSTILE {
        let expression = compile(source);
        let variables = Variables { object: &object, namespace: None, template: None };
        let start = Instant::now();
        let mut budget = Budget::validations();
        let verdict = expression.test(&variables, &mut budget);
        let took = start.elapsed();
        println!("{:>9.3} ms {:?} {source}", took.as_secs_f64() * 1e3, verdict.as_ref().map_err(|f| f.to_string()));
        assert!(took < LIMIT, "{took:?} {source}");
        assert!(super::COST_OF_VALIDATIONS - budget.left() <= COST_PER_EXPRESSION, "{source}");
    }
}

#[test]
fn hostile_sources_end() {
    for source in [
        "[".repeat(99_999),
        "{".repeat(99_999),
        "(".repeat(99_999),
        "-".repeat(99_999),
        "!".repeat(99_999),
        "a.".repeat(49_999),
        "a?".repeat(49_999),
        "[],".repeat(33_000),
        format!("[{}] == []", "[],".repeat(33_000)),
        format!("[{}] == []", "{},".repeat(33_000)),
        format!("{}true", "[] == [] && ".repeat(8_000)),
        format!("{}true", "'%s'.format([[]]) == '' && ".repeat(3_000)),
        format!("[1]{} == []", ".map(x, {x: x})".repeat(200)),
        format!("[1]{} == []", ".map(x, [x, x])".repeat(200)),
        format!("{}1{} == 1", "dyn(".repeat(200), ")".repeat(200)),
        format!("{}'a'{} == ''", "'%s'.format([".repeat(100), "])".repeat(100)),
        format!("'a'.matches('{}')", "(".repeat(90_000)),
        format!("'a'.matches('{}')", "(a{1000})".repeat(9_000)),
        format!("'a'.matches('{}')", "\\\\p{L}".repeat(9_000)),
        format!("optional.of(1){}.hasValue()", ".optMap(x, optional.of(x))".repeat(200)),
        "\u{0}\u{feff}'\\U0010ffff' == 'é'".to_owned(),
        "'\\u".to_owned(),
        "b'\\".to_owned(),
        "r'".to_owned(),
        "0x".to_owned(),
        "1e".to_owned(),
        "1.e5 == 1".to_owned(),
        "..".to_owned(),
        "a.?".to_owned(),
        "a[?".to_owned(),
        "'\\ud83d\\ude00' == ''".to_owned(),
    ] {
        let start = Instant::now();
        let _ = Expression::compile(&source, Gives::Bool, Dialect::NEWEST);
        let took = start.elapsed();
        assert!(took < LIMIT, "{took:?} {}", source.chars().take(60).collect::<String>());
    }
}

/// Pieces of expressions in any order: whatever comes of it, nothing panics.
#[test]
fn nothing_panics() {
    const PIECES: [&str; 40] = [
        "object",
        ".a",
        ".?b",
        "[0]",
        "[?'x']",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ":",
        ",",
        "1",
        "-1",
        "2u",
        "1.5",
        "'é'",
        "b'\\xff'",
        "null",
        "true",
        " && ",
        " || ",
        " ? ",
        " + ",
        " - ",
        " == ",
        " < ",
        " in ",
        "!",
        ".all(x, ",
        ".map(x, y, ",
        "has(",
        "size(",
        ".size()",
        "duration('1h')",
        ".format(",
        "quantity(",
        ".substring(",
        "optional.of(",
    ];
    let object = json!({ "a": [1, "é", null, { "b": 1.5 }], "b": { "x": true } });
    let variables = Variables { object: &object, namespace: Some(&object), template: None };
    // A linear congruential generator: the same pieces at each run.
    let mut state = 1_u64;
    for _ in 0..30_000 {
        let mut source = String::new();
        for _ in 0..(state >> 40) % 12 + 1 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            source.push_str(PIECES[usize::try_from(state >> 33).expect("it fits") % PIECES.len()]);
        }
        let dialect = if state >> 63 == 0 { Dialect::NEWEST } else { Dialect::OLDEST };
        if let Ok(expression) = Expression::compile(&source, Gives::Bool, dialect) {
            let _ = expression.test(&variables, &mut Budget::new(10_000));
        }
    }
}
