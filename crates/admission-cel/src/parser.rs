//! Parses tokens into nodes, by recursive descent over the grammar of cel-go (parser/gen/CEL.g4).

use super::ast::{Call, Entry, Item, Kind, Literal, MAX_DEPTH, Node, too_deep};
use super::dialect::{Dialect, ESCAPED_FIELDS};
use super::error::Fault;
use super::lexer::{self, Token, TokenKind};
use super::macros;

/// The longest expression, in characters: cel-go's default, which the server does not change.
const MAX_LENGTH: usize = 100_000;

/// Reserved words: invalid as names of variables and functions, but valid as names of fields.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
];

/// Binary operators, with their precedence.
const BINARY: [(&str, &str, u8); 14] = [
    ("||", "_||_", 1),
    ("&&", "_&&_", 2),
    ("<", "_<_", 3),
    ("<=", "_<=_", 3),
    (">", "_>_", 3),
    (">=", "_>=_", 3),
    ("==", "_==_", 3),
    ("!=", "_!=_", 3),
    ("in", "@in", 3),
    ("+", "_+_", 4),
    ("-", "_-_", 4),
    ("*", "_*_", 5),
    ("/", "_/_", 5),
    ("%", "_%_", 5),
];

/// Parses the expression in `source`.
///
/// # Errors
/// If the text is no expression, or is too long or too deep.
pub(super) fn parse(source: &str, dialect: Dialect) -> Result<Node, Fault> {
    if source.len() > MAX_LENGTH && source.chars().count() > MAX_LENGTH {
        return Err(Fault::new(0, format!("expression code point size exceeds limit: limit {MAX_LENGTH}")));
    }
    let mut parser =
        Parser { tokens: lexer::tokens(source, dialect)?.into_iter().peekable(), dialect, depth: 0, end: source.len() };
    let node = parser.expression()?;
    match parser.next() {
        Token { kind: TokenKind::End, .. } => Ok(node),
        other => Err(unexpected(&other, "the end of the expression, or an operator")),
    }
}

fn unexpected(token: &Token, expected: &str) -> Fault {
    let found = match &token.kind {
        TokenKind::Name(name) => format!("'{name}'"),
        TokenKind::Escaped(name) => format!("'`{name}`'"),
        TokenKind::Int(digits) => format!("'{digits}'"),
        TokenKind::Uint(value) => format!("'{value}u'"),
        TokenKind::Double(value) => format!("'{value}'"),
        TokenKind::Text(_) => "a string".to_owned(),
        TokenKind::Bytes(_) => "bytes".to_owned(),
        TokenKind::Symbol(symbol) => format!("'{symbol}'"),
        TokenKind::End => "the end".to_owned(),
    };
    Fault::new(token.at, format!("Syntax error: found {found}, expected {expected}"))
}

struct Parser {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
    dialect: Dialect,
    depth: u16,
    end: usize,
}

impl Parser {
    fn next(&mut self) -> Token {
        self.tokens.next().unwrap_or(Token { at: self.end, kind: TokenKind::End })
    }

    fn at(&mut self) -> usize {
        self.tokens.peek().map_or(self.end, |token| token.at)
    }

    fn symbol(&mut self) -> Option<&'static str> {
        match self.tokens.peek()?.kind {
            TokenKind::Symbol(symbol) => Some(symbol),
            _ => None,
        }
    }

    /// Takes `symbol` if it is the next token.
    fn skip(&mut self, symbol: &str) -> bool {
        let is_next = self.symbol() == Some(symbol);
        if is_next {
            self.next();
        }
        is_next
    }

    fn expect(&mut self, symbol: &str) -> Result<(), Fault> {
        match self.next() {
            Token { kind: TokenKind::Symbol(found), .. } if found == symbol => Ok(()),
            other => Err(unexpected(&other, &format!("'{symbol}'"))),
        }
    }

    fn expression(&mut self) -> Result<Node, Fault> {
        if self.depth >= MAX_DEPTH {
            return Err(too_deep(self.at()));
        }
        self.depth += 1;
        let condition = self.binary(1)?;
        let node = if self.symbol() == Some("?") { self.conditional(condition)? } else { condition };
        self.depth -= 1;
        Ok(node)
    }

    fn conditional(&mut self, condition: Node) -> Result<Node, Fault> {
        let at = self.next().at;
        let yes = self.binary(1)?;
        self.expect(":")?;
        let no = self.expression()?;
        call(at, "_?_:_", vec![condition, yes, no])
    }

    /// Operators with at least the precedence `tightness`.
    fn binary(&mut self, tightness: u8) -> Result<Node, Fault> {
        let mut left = self.unary()?;
        while let Some(operator) = self.operator().filter(|operator| operator.2 >= tightness) {
            let at = self.next().at;
            let right = self.binary(operator.2 + 1)?;
            left = combine(at, operator.1, left, right)?;
        }
        Ok(left)
    }

    fn operator(&mut self) -> Option<(&'static str, &'static str, u8)> {
        let symbol = self.symbol()?;
        BINARY.into_iter().find(|operator| operator.0 == symbol)
    }

    /// Any number of `!` or `-`. Pairs cancel each other.
    fn unary(&mut self) -> Result<Node, Fault> {
        let at = self.at();
        let Some(sign) = self.symbol().filter(|symbol| matches!(*symbol, "!" | "-")) else { return self.member() };
        let mut count = 0_usize;
        while self.skip(sign) {
            count += 1;
        }
        let is_number =
            matches!(self.tokens.peek(), Some(Token { kind: TokenKind::Int(_) | TokenKind::Double(_), .. }));
        if sign == "-" && count % 2 == 1 && is_number {
            let literal = self.number(true)?;
            return self.suffixes(literal);
        }
        let operand = self.member()?;
        match (sign, count % 2) {
            (_, 0) => Ok(operand),
            ("!", _) => call(at, "!_", vec![operand]),
            _ => call(at, "-_", vec![operand]),
        }
    }

    fn number(&mut self, is_negative: bool) -> Result<Node, Fault> {
        let token = self.next();
        let literal = match &token.kind {
            TokenKind::Int(digits) => {
                Literal::Int(integer(digits, is_negative).ok_or_else(|| Fault::new(token.at, "invalid int literal"))?)
            }
            TokenKind::Double(value) => Literal::Double(if is_negative { -value } else { *value }),
            _ => return Err(unexpected(&token, "a number")),
        };
        Node::new(token.at, Kind::Literal(literal))
    }

    fn member(&mut self) -> Result<Node, Fault> {
        let primary = self.primary()?;
        self.suffixes(primary)
    }

    /// Any number of `.field`, `.call()` and `[index]`.
    fn suffixes(&mut self, mut operand: Node) -> Result<Node, Fault> {
        loop {
            let at = self.at();
            if self.skip(".") {
                operand = self.dot(at, operand)?;
            } else if self.skip("[") {
                let function = if self.skip("?") { "_[?_]" } else { "_[_]" };
                let key = self.expression()?;
                self.expect("]")?;
                operand = call(at, function, vec![operand, key])?;
            } else if self.symbol() == Some("{") && matches!(operand.kind, Kind::Name(_) | Kind::Select { .. }) {
                return Err(Fault::new(at, "objects of a type cannot be made here; write a map: {'key': value}"));
            } else {
                return Ok(operand);
            }
        }
    }

    fn dot(&mut self, at: usize, operand: Node) -> Result<Node, Fault> {
        let is_optional = self.skip("?");
        let token = self.next();
        let field = match token.kind {
            TokenKind::Name(field) => field,
            TokenKind::Escaped(field) if self.dialect.has(ESCAPED_FIELDS) => {
                return Node::new(at, Kind::Select { operand: Box::new(operand), field, is_optional });
            }
            TokenKind::Escaped(_) => {
                let message = format!("unsupported syntax: '`'; Kubernetes has it from 1.{} on", ESCAPED_FIELDS.0);
                return Err(Fault::new(token.at, message));
            }
            _ => return Err(unexpected(&token, "the name of a field")),
        };
        if is_optional || !self.skip("(") {
            return Node::new(at, Kind::Select { operand: Box::new(operand), field, is_optional });
        }
        let arguments = self.arguments()?;
        macros::member(at, operand, &field, arguments, self.dialect)
    }

    /// Parses arguments up to the closing parenthesis.
    fn arguments(&mut self) -> Result<Vec<Node>, Fault> {
        let mut arguments = Vec::new();
        if self.skip(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression()?);
            if !self.skip(",") {
                self.expect(")")?;
                return Ok(arguments);
            }
        }
    }

    fn primary(&mut self) -> Result<Node, Fault> {
        if matches!(self.tokens.peek(), Some(Token { kind: TokenKind::Int(_) | TokenKind::Double(_), .. })) {
            return self.number(false);
        }
        let token = self.next();
        let literal = match token.kind {
            TokenKind::Name(name) => return self.name(token.at, name),
            TokenKind::Symbol(".") => return self.rooted(),
            TokenKind::Symbol("(") => return self.parenthesis(),
            TokenKind::Symbol("[") => return self.list(token.at),
            TokenKind::Symbol("{") => return self.map(token.at),
            TokenKind::Symbol("true") => Literal::Bool(true),
            TokenKind::Symbol("false") => Literal::Bool(false),
            TokenKind::Symbol("null") => Literal::Null,
            TokenKind::Uint(value) => Literal::Uint(value),
            TokenKind::Text(text) => Literal::Text(text),
            TokenKind::Bytes(bytes) => Literal::Bytes(bytes),
            _ => return Err(unexpected(&token, "a value")),
        };
        Node::new(token.at, Kind::Literal(literal))
    }

    fn parenthesis(&mut self) -> Result<Node, Fault> {
        let inner = self.expression()?;
        self.expect(")")?;
        Ok(inner)
    }

    /// A name after a leading dot, which means the outermost scope. There is no other scope.
    fn rooted(&mut self) -> Result<Node, Fault> {
        let token = self.next();
        match token.kind {
            TokenKind::Name(name) => self.name(token.at, name),
            _ => Err(unexpected(&token, "a name")),
        }
    }

    fn name(&mut self, at: usize, name: String) -> Result<Node, Fault> {
        if RESERVED.contains(&name.as_str()) || name == "while" {
            return Err(Fault::new(at, format!("reserved identifier: {name}")));
        }
        if !self.skip("(") {
            return Node::new(at, Kind::Name(name));
        }
        let arguments = self.arguments()?;
        macros::global(at, name, arguments)
    }

    fn list(&mut self, at: usize) -> Result<Node, Fault> {
        let mut items = Vec::new();
        while !self.skip("]") {
            let is_optional = self.skip("?");
            items.push(Item { value: self.expression()?, is_optional });
            if !self.skip(",") {
                self.expect("]")?;
                break;
            }
        }
        Node::new(at, Kind::List(items))
    }

    fn map(&mut self, at: usize) -> Result<Node, Fault> {
        let mut entries = Vec::new();
        while !self.skip("}") {
            let is_optional = self.skip("?");
            let key = self.expression()?;
            self.expect(":")?;
            entries.push(Entry { key, value: self.expression()?, is_optional });
            if !self.skip(",") {
                self.expect("}")?;
                break;
            }
        }
        Node::new(at, Kind::Map(entries))
    }
}

/// A call of a global function.
fn call(at: usize, function: &str, arguments: Vec<Node>) -> Result<Node, Fault> {
    Node::new(at, Kind::Call(Box::new(Call { function: function.to_owned(), is_member: false, arguments })))
}

/// A binary operator. Chains of `&&` and of `||` become one node, because the server does not count them as depth.
fn combine(at: usize, function: &str, left: Node, right: Node) -> Result<Node, Fault> {
    let kind = match (function, left.kind) {
        ("_&&_", Kind::And(mut terms)) => {
            terms.push(right);
            Kind::And(terms)
        }
        ("_||_", Kind::Or(mut terms)) => {
            terms.push(right);
            Kind::Or(terms)
        }
        (_, kind) => {
            let left = Node { kind, ..left };
            match function {
                "_&&_" => Kind::And(vec![left, right]),
                "_||_" => Kind::Or(vec![left, right]),
                _ => return call(at, function, vec![left, right]),
            }
        }
    };
    Node::new(at, kind)
}

fn integer(digits: &str, is_negative: bool) -> Option<i64> {
    let (digits, radix) = digits.strip_prefix("0x").map_or((digits, 10), |hex| (hex, 16));
    let magnitude = i128::from_str_radix(digits, radix).ok()?;
    i64::try_from(if is_negative { -magnitude } else { magnitude }).ok()
}
