//! The values of parameters: the types that an expression may have, and the text of a value.

use super::error::Failure;
use super::functions::convert;
use super::moment;
use super::types::{Opaque, Type};
use super::value::Val;

/// The types of a value, for messages.
const WANTED: &str = "must evaluate to a text, a number, a bool, a duration or a quantity";

/// Checks that an expression of this type may give the value of a parameter.
///
/// # Errors
/// If it may not: the reason, with a fix if possible.
pub(super) fn check(found: &Type) -> Result<(), String> {
    let hint = match found {
        Type::Text | Type::Int | Type::Uint | Type::Double | Type::Bool | Type::Duration => return Ok(()),
        Type::Opaque(Opaque::Quantity) | Type::Dyn | Type::Parameter(_) => return Ok(()),
        Type::Optional(_) => "; give a default, as in `….orValue(…)`",
        Type::List(_) => "; select an item, as in `…[0]`, or join texts, as in `….join(',')`",
        Type::Map(_) | Type::Object(_) => "; select a field",
        Type::Bytes | Type::Timestamp | Type::Meta => "; convert it, as in `string(…)`",
        Type::Opaque(Opaque::Ip | Opaque::Cidr) => "; convert it, as in `string(…)`",
        Type::Opaque(_) | Type::Null => "",
    };
    Err(format!("{WANTED} but got {found}{hint}"))
}

/// The text of a value, as an author writes it into an annotation.
///
/// # Errors
/// If the value has another type, or is a double that is no number.
pub(super) fn text(value: &Val<'_>) -> Result<String, Failure> {
    let hint = match value {
        Val::Text(text) => return Ok(text.to_string()),
        Val::Bool(value) => return Ok(value.to_string()),
        Val::Int(value) => return Ok(value.to_string()),
        Val::Uint(value) => return Ok(value.to_string()),
        Val::Double(value) => return double(*value),
        Val::Duration(nanos) => return Ok(moment::duration_text(*nanos)),
        Val::Quantity(quantity) => return Ok(quantity.to_string()),
        Val::Null => "; compare it, as in `… == null ? … : …`",
        Val::Optional(_) => "; give a default, as in `….orValue(…)`",
        Val::List(_) => "; select an item, as in `…[0]`",
        Val::Map(_) => "; select a field",
        _ => "",
    };
    Err(Failure::new(format!("{WANTED} but got {}{hint}", value.type_name().name())))
}

/// The shortest digits that are read as the same double, without an exponent.
fn double(value: f64) -> Result<String, Failure> {
    if !value.is_finite() {
        return Err(Failure::new(format!("{WANTED} but got the double {}", convert::double_text(value))));
    }
    // The sum removes the sign of `-0`.
    Ok((value + 0.0).to_string())
}

#[cfg(test)]
mod tests {
    use crate::{Budget, COST_OF_VALIDATIONS, COST_PER_EXPRESSION, Dialect, Expression, Failure, Gives, Variables};
    use serde_json::{Value, json};
    use std::time::{Duration, Instant};

    fn object() -> Value {
        json!({
            "kind": "Deployment",
            "metadata": { "name": "web", "labels": { "app": "shop" }, "annotations": { "size": "" } },
            "numbers": { "int": 3, "large": u64::MAX, "half": 0.5, "whole": 2.0, "huge": 1e300 },
            "sizes": ["1Gi", "512Mi", "100M"], "nothing": null, "yes": true,
        })
    }

    fn template() -> Value {
        let container =
            |cpu: &str, memory: &str| json!({ "resources": { "requests": { "cpu": cpu, "memory": memory } } });
        json!({ "spec": { "containers": [container("500m", "1Gi"), container("1", "512Mi"), container("250m", "256Mi")] } })
    }

    fn compile(source: &str) -> Result<Expression, String> {
        Expression::compile(source, Gives::Value, Dialect::NEWEST).map_err(|error| error.to_string())
    }

    fn value(source: &str) -> Result<String, String> {
        let expression = compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
        let (object, template) = (object(), template());
        let variables = Variables { object: &object, namespace: None, template: Some(&template) };
        expression.value(&variables, &mut Budget::validations()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_value_is_written_as_an_author_writes_it() {
        for (source, text) in [
            ("object.metadata.?labels['app'].orValue('none')", "shop"),
            ("object.metadata.?labels['team'].orValue(object.metadata.?name.orValue('unknown'))", "web"),
            ("'  $(a) \\n\"' + \"'\"", "  $(a) \n\"'"),
            ("''", ""),
            ("object.metadata.annotations.size", ""),
            ("object.numbers.int", "3"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("18446744073709551615u", "18446744073709551615"),
            ("size(template.spec.containers)", "3"),
            ("object.numbers.half", "0.5"),
            ("object.numbers.whole", "2"),
            ("object.numbers.large", "18446744073709552000"),
            ("1000000.0", "1000000"),
            ("1e21", "1000000000000000000000"),
            ("1234567.5", "1234567.5"),
            ("0.00001", "0.00001"),
            ("0.1 + 0.2", "0.30000000000000004"),
            ("-0.0", "0"),
            ("-1.5", "-1.5"),
            ("object.yes", "true"),
            ("1 > 2", "false"),
            ("duration('1h30m')", "5400s"),
            ("duration('90s')", "90s"),
            ("duration('500ms')", "0.5s"),
            ("duration('-1m')", "-60s"),
            ("quantity('1.5')", "1500m"),
            ("quantity('1024Mi')", "1Gi"),
            ("quantity('1e4')", "10e3"),
            ("dyn(quantity('64Mi'))", "64Mi"),
            ("quantity('1Gi').sub(quantity('512Mi'))", "512Mi"),
            ("quantity('1Gi').add(24)", "1073741848"),
            ("quantity('0').add(5000)", "5e3"),
            ("quantity(string(int(quantity('250m').asApproximateFloat() * 1000.0 * 0.1)) + 'm')", "25m"),
            ("[][?0].orValue('none')", "none"),
        ] {
            assert_eq!(value(source).as_deref(), Ok(text), "{source}");
        }
    }

    #[test]
    fn quantities_have_a_sum_and_extremes() {
        let of = |field: &str, call: &str| {
            format!("template.spec.containers.map(c, quantity(c.resources.requests.{field})).{call}()")
        };
        for (source, text) in [
            (of("cpu", "sum"), "1750m"),
            (of("cpu", "max"), "1"),
            (of("cpu", "min"), "250m"),
            (of("memory", "sum"), "1792Mi"),
            (of("memory", "max"), "1Gi"),
            (of("memory", "min"), "256Mi"),
            // The format is that of the first quantity.
            ("object.sizes.map(s, quantity(s)).sum()".to_owned(), "1710612736"),
            ("object.sizes.reverse().map(s, quantity(s)).sum()".to_owned(), "1710612736"),
            ("[quantity('0'), quantity('1Gi')].sum()".to_owned(), "1Gi"),
            ("[quantity('1e3'), quantity('2k')].sum()".to_owned(), "3e3"),
            // The first of equal ones.
            ("[quantity('1024Mi'), quantity('1073741824')].max()".to_owned(), "1Gi"),
            ("[quantity('1e3'), quantity('1k')].min()".to_owned(), "1e3"),
            ("[quantity('9223372036854775808'), quantity('1n')].max()".to_owned(), "9223372036854775808"),
            // No quantities are zero. The sum of nothing known is the number zero, as on the server.
            ("[quantity('1')].filter(q, false).sum()".to_owned(), "0"),
            ("[].sum()".to_owned(), "0"),
            ("dyn([]).sum()".to_owned(), "0"),
            ("dyn([quantity('1'), quantity('500m')]).sum()".to_owned(), "1500m"),
            ("dyn([quantity('1'), quantity('500m')]).max().add(quantity('1'))".to_owned(), "2"),
            ("[dyn(quantity('1')), dyn(quantity('500m'))].min()".to_owned(), "500m"),
            // Numbers, durations and texts have what the server has.
            ("[1, 2].sum()".to_owned(), "3"),
            ("[duration('1m'), duration('1s')].sum()".to_owned(), "61s"),
            ("object.sizes.max()".to_owned(), "512Mi"),
        ] {
            assert_eq!(value(&source).as_deref(), Ok(text), "{source}");
        }
        for minor in [30, 34, 37] {
            let source = of("cpu", "sum");
            assert!(Expression::compile(&source, Gives::Value, Dialect::of(minor)).is_ok(), "1.{minor}");
        }
    }

    #[test]
    fn what_is_no_value_fails_with_a_reason() {
        const WANTED: &str = "must evaluate to a text, a number, a bool, a duration or a quantity but got";
        for (source, reason) in [
            ("object.nothing", &*format!("{WANTED} null_type; compare it, as in `… == null ? … : …`")),
            ("object.sizes", &format!("{WANTED} list; select an item, as in `…[0]`")),
            ("object.metadata", &format!("{WANTED} map; select a field")),
            ("dyn(object.?kind)", &format!("{WANTED} optional_type; give a default, as in `….orValue(…)`")),
            ("dyn(b'a')", &format!("{WANTED} bytes")),
            ("dyn(type(1))", &format!("{WANTED} type")),
            ("dyn(url('http://a'))", &format!("{WANTED} kubernetes.URL")),
            ("1.0 / 0.0", &format!("{WANTED} the double +Inf")),
            ("-1.0 / 0.0", &format!("{WANTED} the double -Inf")),
            ("0.0 / 0.0", &format!("{WANTED} the double NaN")),
            ("object.missing", "no such key: missing"),
            ("template.spec.missing", "no such key: missing"),
            ("object.sizes.filter(s, false).map(s, quantity(s)).max()", "max called on empty list"),
            ("object.sizes.filter(s, false).map(s, quantity(s)).min()", "min called on empty list"),
            ("object.sizes.sum()", "no such overload"),
            ("[dyn(quantity('1')), dyn(1)].sum()", "no such overload"),
            ("[dyn(1), dyn(quantity('1'))].max()", "no such overload"),
            ("[dyn(quantity('1')), dyn(null)].min()", "no such overload"),
            ("[quantity('1e300'), quantity('1n')].sum()", "quantity overflow"),
            ("quantity('1 Gi')", "unable to parse quantity's suffix or number"),
            ("string(9223372036854775807 + object.numbers.int)", "integer overflow"),
        ] {
            assert_eq!(value(source).as_ref().map_err(String::as_str), Err(reason), "{source}");
        }
    }

    #[test]
    fn what_can_be_no_value_is_refused() {
        const WANTED: &str = "must evaluate to a text, a number, a bool, a duration or a quantity but got";
        for (source, reason) in [
            ("object.?kind", "optional_type(dyn); give a default, as in `….orValue(…)`"),
            ("optional.of('a')", "optional_type(string); give a default, as in `….orValue(…)`"),
            ("[1]", "list(int); select an item, as in `…[0]`, or join texts, as in `….join(',')`"),
            ("{'a': 1}", "map(string, int); select a field"),
            ("namespaceObject.metadata", "kubernetes.NamespaceMetadata; select a field"),
            ("null", "null"),
            ("b'a'", "bytes; convert it, as in `string(…)`"),
            ("timestamp('2024-01-01T00:00:00Z')", "timestamp; convert it, as in `string(…)`"),
            ("type(1)", "type; convert it, as in `string(…)`"),
            ("ip('10.0.0.1')", "net.IP; convert it, as in `string(…)`"),
            ("url('http://a')", "kubernetes.URL"),
        ] {
            let error = compile(source).expect_err(source);
            assert!(error.ends_with(&format!("{WANTED} {reason}")), "{source}: {error}");
        }
        for (source, reason) in [
            ("templete.spec", "undeclared reference to 'templete' (in container ''), did you mean 'template'?"),
            ("request.name", "the variables are 'object', 'namespaceObject', 'template'"),
            ("[quantity('1')].sort()", "found no matching overload for 'sort'"),
            ("quantity('1') * 2", "found no matching overload for '_*_'"),
            ("max([1])", "found no matching overload for 'max'"),
        ] {
            let error = compile(source).expect_err(source);
            assert!(error.contains(reason), "{source}: {error}");
        }
    }

    /// Only values of parameters have what no server has.
    #[test]
    fn servers_have_none_of_it() {
        for (gives, end) in [(Gives::Bool, " == 'a'"), (Gives::String, " + 'a'")] {
            for dialect in [Dialect::OLDEST, Dialect::NEWEST] {
                let refusal = |source: &str| {
                    Expression::compile(&format!("{source}{end}"), gives, dialect).expect_err(source).message
                };
                let known = "the variables are 'object', 'namespaceObject'";
                assert_eq!(
                    refusal("template.a"),
                    format!("undeclared reference to 'template' (in container ''): {known}")
                );
                let sum = refusal("string([quantity('1')].sum())");
                assert_eq!(
                    sum,
                    "found no matching overload for 'sum' applied to 'list(kubernetes.Quantity).()'; it takes \
                     list(int).sum(), list(uint).sum(), list(double).sum(), list(duration).sum()"
                );
                assert!(refusal("string([quantity('1')].max())").starts_with("found no matching overload for 'max'"));
            }
        }
        let hidden = Expression::compile("['a'].all(template, template == 'a')", Gives::Bool, Dialect::NEWEST);
        let nothing = Variables { object: &Value::Null, namespace: None, template: Some(&Value::Null) };
        assert_eq!(hidden.expect("a variable").test(&nothing, &mut Budget::validations()), Ok(true));
        let dynamic = Expression::compile("dyn([quantity('1')]).sum() == 1", Gives::Bool, Dialect::NEWEST);
        let verdict = dynamic.expect("dyn").test(&nothing, &mut Budget::validations());
        assert_eq!(verdict, Err(Failure::no_such_overload()));
    }

    #[test]
    fn the_template_is_null_if_there_is_none() {
        let expression = compile("template == null ? 'none' : template.spec.a + string(object.b)").expect("a text");
        let variables = Variables { object: &Value::Null, namespace: None, template: None };
        assert_eq!(expression.value(&variables, &mut Budget::validations()), Ok("none".to_owned()));
    }

    /// Expressions that are expensive on the object below.
    const HOSTILE: &[&str] = &[
        "object.list.map(x, quantity(string(x))).sum()",
        "object.list.map(x, quantity(string(x))).max()",
        "object.quantities.map(x, quantity(x)).sum()",
        "[object.list.map(x, quantity('1n'))].map(q, lists.range(1000).map(i, q.sum()))[0][0]",
        "lists.range(100000).map(i, quantity('1Ei')).sum()",
        "[[quantity('1e30'), quantity('1n')]].map(a, a + a).map(b, b + b).map(c, lists.range(90000).map(i, c.sum()))[0][0]",
        "[[quantity('1')]].map(a, a + a + a + a + a + a + a + a).map(b, b + b + b + b + b + b + b + b).map(c, c + c + c + c + c + c + c + c).map(d, d + d + d + d + d + d + d + d).map(e, e + e + e + e + e + e + e + e).map(f, f + f + f + f + f + f + f + f)[0].sum()",
        "quantity(object.text)",
        "quantity(object.zeros)",
        "object.list.map(x, quantity(object.zeros)).max()",
        "template.spec.containers.map(c, c).sum()",
        "object.list.map(x, template).size()",
        "object.text + object.text",
        "1e308 * 1.5",
    ];

    #[test]
    fn hostile_expressions_end() {
        let object = json!({
            "text": "9".repeat(256 << 10),
            "zeros": format!("0.{}1Gi", "0".repeat(256 << 10)),
            "list": (0..100_000).collect::<Vec<_>>(),
            "quantities": vec!["123456789012345678901234567890"; 100_000],
        });
        for source in HOSTILE {
            let expression = compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
            let variables = Variables { object: &object, namespace: None, template: Some(&object) };
            let mut budget = Budget::validations();
            let start = Instant::now();
            let value = expression.value(&variables, &mut budget).map_err(|failure| failure.to_string());
            let took = start.elapsed();
            let shown = value.as_deref().map(|text| text.chars().take(40).collect::<String>());
            println!("{:>9.3} ms {shown:?} {source}", took.as_secs_f64() * 1e3);
            // A debug build on a busy machine.
            assert!(took < Duration::from_secs(120), "{took:?} {source}");
            assert!(COST_OF_VALIDATIONS - budget.left() <= COST_PER_EXPRESSION, "{source}");
        }
        let cost = |source: &str| {
            let mut budget = Budget::validations();
            let object = json!({});
            let variables = Variables { object: &object, namespace: None, template: None };
            let value = compile(source).expect(source).value(&variables, &mut budget);
            (value.is_ok(), COST_OF_VALIDATIONS - budget.left())
        };
        let (short, long) = (cost("[quantity('1')].sum()"), cost("lists.range(10000).map(i, quantity('1')).sum()"));
        assert!(short.0 && long.0 && long.1 > 10_000 + short.1, "{short:?} {long:?}");
        assert_eq!(cost("lists.range(900000).map(i, quantity('1')).sum()"), (false, COST_PER_EXPRESSION));
    }

    #[test]
    fn hostile_sources_end() {
        let nested = |open: &str, inner: &str, close: &str, depth: usize| {
            format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
        };
        for depth in [200, 20_000] {
            for source in [
                nested("[", "quantity('1')", "].sum()", depth),
                nested("[", "dyn(quantity('1'))", "].max()", depth),
                nested("quantity(", "'1'", ")", depth),
                nested("(", "template", ")", depth),
                format!("template{}", ".?a".repeat(depth)),
                format!("template{}.orValue('')", ".?a".repeat(depth)),
            ] {
                if let Ok(expression) = compile(&source) {
                    let variables = Variables { object: &Value::Null, namespace: None, template: None };
                    let _ = expression.value(&variables, &mut Budget::validations());
                }
            }
        }
        for number in ["9223372036854775808", "1e400", "١", "1_000", "0x1p-2000"] {
            // Whatever is no number of CEL is refused, or has a text or a failure.
            if let Ok(expression) = compile(number) {
                let variables = Variables { object: &Value::Null, namespace: None, template: None };
                let _ = expression.value(&variables, &mut Budget::validations());
            }
        }
        assert!(compile("9223372036854775808").is_err() && compile("1e400").is_err());
    }
}
