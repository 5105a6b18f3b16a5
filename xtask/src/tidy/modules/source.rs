//! Parses the declarations, imports and paths of one source file.

use std::collections::BTreeMap;

use super::super::tokens::{Token, tokens};
use crate::limits::ASSEMBLY_STATEMENTS_MAX;

/// A path as written, starting with `crate`, `self`, `super` or a name.
pub(super) type Path = Vec<String>;

/// A place where the file names an item by a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) path: Path,
    pub(super) line: usize,
}

/// The contents of a file, without items that are only compiled for tests.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Child modules that have their own files.
    pub(super) children: Vec<String>,
    /// Names of the file's other items and of its inline modules.
    pub(super) items: Vec<String>,
    /// The path of each imported name.
    pub(super) imports: BTreeMap<String, Path>,
    /// The modules of glob imports.
    pub(super) globs: Vec<Path>,
    /// Every path with more than one segment, including imports.
    pub(super) uses: Vec<Use>,
    /// Whether the file has a function with a loop or with many statements.
    pub(super) has_logic: bool,
}

impl Source {
    pub(super) fn parse(text: &str) -> Self {
        let mut source = Self::default();
        Reader { tokens: tokens(text), at: 0, source: &mut source }.items(&[]);
        source
    }
}

/// Keywords that begin an item whose name is the next token.
const NAMED: [&str; 7] = ["struct", "enum", "union", "trait", "type", "static", "macro_rules"];

struct Reader<'text, 'source> {
    tokens: Vec<Token<'text>>,
    at: usize,
    source: &'source mut Source,
}

impl<'text> Reader<'text, '_> {
    fn text(&self, ahead: usize) -> &'text str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    /// Reads to the end of the file, or of the inline module that `inside` names.
    fn items(&mut self, inside: &[String]) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "#" if self.is_for_tests() => {
                    self.skip_item();
                    continue;
                }
                "#" => {
                    self.skip_attribute();
                    continue;
                }
                "{" => depth += 1,
                "}" if depth == 0 => return,
                "}" => depth -= 1,
                "use" if !self.follows_path() && self.text(1) != "<" => {
                    self.at += 1;
                    let line = self.tokens[self.at.min(self.tokens.len() - 1)].line;
                    self.imports(&mut Vec::new(), inside, line);
                    continue;
                }
                "mod" if self.text(2) == ";" => {
                    self.source.children.push(self.text(1).to_owned());
                    self.at += 2;
                }
                "mod" if self.text(2) == "{" => {
                    let name = self.text(1).to_owned();
                    self.source.items.push(name.clone());
                    self.at += 3;
                    let inner: Vec<String> = inside.iter().cloned().chain([name]).collect();
                    self.items(&inner);
                }
                word if NAMED.contains(&word) && depth == 0 => {
                    let name = self.text(if word == "macro_rules" { 2 } else { 1 });
                    self.source.items.push(name.to_owned());
                }
                "const" if depth == 0 && self.text(2) == ":" => {
                    self.source.items.push(self.text(1).to_owned());
                }
                "fn" => {
                    if depth == 0 {
                        self.source.items.push(self.text(1).to_owned());
                    }
                    self.source.has_logic |= self.function_has_logic();
                }
                _ if self.tokens[self.at].is_word() && self.text(1) == "::" => {
                    self.path(inside);
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Whether the token continues a path or a method call, or is a raw name.
    fn follows_path(&self) -> bool {
        self.at > 0 && matches!(self.tokens[self.at - 1].text, "::" | "." | "#")
    }

    /// Returns whether the attribute here is `#[test]`, `#[cfg(test)]` or another condition that
    /// requires `test`.
    fn is_for_tests(&self) -> bool {
        let is_test_function = self.text(1) == "[" && self.text(2) == "test";
        let is_condition = self.text(1) == "[" && self.text(2) == "cfg";
        let end = self.at + self.group_len(1) + 1;
        let condition = &self.tokens[self.at..end.min(self.tokens.len())];
        is_test_function
            || is_condition
                && condition.iter().any(|token| token.text == "test")
                && !condition.iter().any(|token| matches!(token.text, "not" | "any"))
    }

    /// Returns the number of tokens of the bracketed group that begins `ahead` tokens from here.
    fn group_len(&self, ahead: usize) -> usize {
        let mut depth = 0usize;
        for (index, token) in self.tokens[self.at + ahead..].iter().enumerate() {
            match token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return index + 1;
            }
        }
        self.tokens.len() - self.at - ahead
    }

    fn skip_attribute(&mut self) {
        let mark = if self.text(1) == "!" { 2 } else { 1 };
        self.at += mark + self.group_len(mark);
    }

    /// Skips attributes and the item, field, statement or arm after them.
    fn skip_item(&mut self) {
        while self.text(0) == "#" {
            self.skip_attribute();
        }
        if self.text(0) == "pub" {
            self.at += if self.text(1) == "(" { 1 + self.group_len(1) } else { 1 };
        }
        let first = self.text(0);
        let is_item = NAMED.contains(&first)
            || matches!(first, "fn" | "impl" | "mod" | "use" | "const" | "unsafe" | "async")
            || first == "extern";
        let ends_with_brace = !matches!(first, "use" | "static" | "type" | "let")
            && (first != "const" || matches!(self.text(1), "fn" | "unsafe" | "async"));
        while self.at < self.tokens.len() {
            match self.text(0) {
                ";" => {
                    self.at += 1;
                    return;
                }
                "," if !is_item => {
                    self.at += 1;
                    return;
                }
                ")" | "]" | "}" => return,
                "{" if ends_with_brace => {
                    self.at += self.group_len(0);
                    return;
                }
                "(" | "[" | "{" => self.at += self.group_len(0),
                _ => self.at += 1,
            }
        }
    }

    /// Returns whether the function that begins here has a loop or many statements.
    fn function_has_logic(&self) -> bool {
        let rest = &self.tokens[self.at..];
        let Some(start) = rest.iter().position(|token| matches!(token.text, "{" | ";")) else {
            return false;
        };
        if rest[start].text == ";" {
            return false;
        }
        let body = &rest[start..start + self.group_len(start)];
        let statements = body.iter().filter(|token| token.text == ";").count();
        statements > ASSEMBLY_STATEMENTS_MAX
            || body.iter().any(|token| matches!(token.text, "loop" | "while" | "for"))
    }

    /// Reads a path, and records it if it has more than one segment.
    fn path(&mut self, inside: &[String]) {
        let line = self.tokens[self.at].line;
        let continues = self.follows_path();
        let mut path = vec![self.text(0).to_owned()];
        while self.text(1) == "::" && self.tokens.get(self.at + 2).is_some_and(Token::is_word) {
            self.at += 2;
            path.push(self.text(0).to_owned());
        }
        self.at += 1;
        if !continues && path.len() > 1 {
            self.source.uses.push(Use { path: outside(path, inside), line });
        }
    }

    /// Reads one branch of an import, whose path so far is `prefix`, up to its end.
    fn imports(&mut self, prefix: &mut Path, inside: &[String], line: usize) {
        let len = prefix.len();
        loop {
            match self.text(0) {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(0), "}" | "") {
                        self.imports(prefix, inside, line);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                "*" => {
                    self.at += 1;
                    let path = outside(prefix.clone(), inside);
                    self.source.globs.push(path.clone());
                    self.source.uses.push(Use { path, line });
                    break;
                }
                "," | "}" | ";" | "" => {
                    self.import(prefix.clone(), prefix.last().cloned(), inside, line);
                    break;
                }
                "as" => {
                    let name = self.text(1).to_owned();
                    self.at += 2;
                    self.import(prefix.clone(), Some(name), inside, line);
                    break;
                }
                word => {
                    // `a::{self}` imports `a`.
                    if word != "self" || prefix.is_empty() {
                        prefix.push(word.to_owned());
                    }
                    self.at += 1;
                }
            }
        }
        prefix.truncate(len);
        if prefix.is_empty() && self.text(0) == ";" {
            self.at += 1;
        }
    }

    fn import(&mut self, path: Path, name: Option<String>, inside: &[String], line: usize) {
        let path = outside(path, inside);
        if let Some(name) = name.filter(|name| name != "_" && inside.is_empty()) {
            self.source.imports.insert(name, path.clone());
        }
        self.source.uses.push(Use { path, line });
    }
}

/// Returns the path as it would be written outside of the inline modules `inside`.
fn outside(mut path: Path, inside: &[String]) -> Path {
    let mut depth = inside.len();
    while depth > 0 && path.first().is_some_and(|first| first == "super") {
        path.remove(0);
        depth -= 1;
        if depth == 0 && path.first().is_none_or(|first| first != "super") {
            path.insert(0, "self".into());
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::Source;

    fn paths(text: &str) -> Vec<String> {
        Source::parse(text).uses.iter().map(|used| used.path.join("::")).collect()
    }

    #[test]
    fn nested_imports_are_expanded() {
        let text = "use crate::a::{self, b::C, d as e, f::*}; use super::g;";
        assert_eq!(
            paths(text),
            ["crate::a", "crate::a::b::C", "crate::a::d", "crate::a::f", "super::g"]
        );
        let source = Source::parse(text);
        let names: Vec<_> = source.imports.keys().map(String::as_str).collect();
        assert_eq!(names, ["C", "a", "e", "g"]);
    }

    #[test]
    fn paths_in_code_and_in_macros_are_found() {
        let text = "fn f() { g(crate::a::b(1)); assert!(super::c::D == x.e()); h::<u8>::i(); }";
        assert_eq!(paths(text), ["crate::a::b", "super::c::D"]);
    }

    #[test]
    fn items_for_tests_are_ignored() {
        let text = "
            #[cfg(test)] mod tests { use crate::a; }
            #[cfg(test)] use crate::b::{c, d};
            #[cfg(all(test, unix))] mod e;
            #[cfg(test)] pub(crate) fn f<A, B>() -> crate::g::H { crate::i::j() }
            struct K { #[cfg(test)] l: crate::m::N, o: crate::p::Q }
            #[cfg(not(test))] mod r;
            #[cfg(test)] const S: [crate::t::U; 1] = [crate::t::U {}];
            #[test] fn v() { crate::w::x() }
            use crate::y::Z;";
        assert_eq!(paths(text), ["crate::p::Q", "crate::y::Z"]);
        assert_eq!(Source::parse(text).children, ["r"]);
    }

    #[test]
    fn inline_module_counts_as_part_of_its_file() {
        let text = "mod a { use super::super::b; use super::c; mod d { super::super::e::f(); } }";
        assert_eq!(paths(text), ["super::b", "self::c", "self::e::f"]);
        assert_eq!(Source::parse(text).items, ["a", "d"]);
    }

    #[test]
    fn loops_and_long_functions_are_logic() {
        let assembly = "struct A(u8); impl A { fn new() -> Self { let b = c(); Self(b) } }";
        assert!(!Source::parse(assembly).has_logic);
        assert!(Source::parse("fn a() { while b() {} }").has_logic);
        let long = format!("fn a() {{ {} }}", "b();".repeat(11));
        assert!(Source::parse(&long).has_logic);
        assert!(!Source::parse("trait A { fn b(&self) -> u8; } impl C for D {}").has_logic);
    }
}
