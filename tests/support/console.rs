//! The fenced blocks of a page of the docs, and the commands in them.

#![allow(unreachable_pub, reason = "shared between test programs")]

/// A fenced block of a page.
#[derive(Debug)]
pub struct Block {
    /// The word after the fence.
    pub language: String,
    /// The lines between the fences, without the indentation of the fence.
    pub text: String,
}

/// A command on a page, and its output there.
#[derive(Debug, PartialEq)]
pub struct Example {
    pub command: String,
    pub printed: String,
}

/// The fenced blocks of a page.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    for line in page.lines() {
        let fence = line.trim_start().strip_prefix("```");
        open = match (open.take(), fence) {
            (None, None) => None,
            (None, Some(word)) => {
                let indentation = line.len() - line.trim_start().len();
                Some((Block { language: word.to_owned(), text: String::new() }, indentation))
            }
            (Some((block, _)), Some("")) => {
                blocks.push(block);
                None
            }
            (Some((mut block, indentation)), _) => {
                block.text.push_str(&format!("{}\n", line.get(indentation..).unwrap_or_default()));
                Some((block, indentation))
            }
        };
    }
    assert!(open.is_none(), "a fence without an end");
    blocks
}

impl Block {
    /// The commands of the block, each after `$ `.
    ///
    /// # Panics
    /// If the block has an output before the first command.
    pub fn examples(&self) -> Vec<Example> {
        let mut examples: Vec<Example> = Vec::new();
        for line in self.text.lines() {
            match (line.strip_prefix("$ "), examples.last_mut()) {
                (Some(command), _) => examples.push(Example { command: command.to_owned(), printed: String::new() }),
                (None, Some(example)) => example.printed.push_str(&format!("{line}\n")),
                (None, None) => panic!("{line:?} belongs to no command"),
            }
        }
        examples
    }
}

/// The commands in blocks that begin with ```` ```console ````. Such a block has the whole output of its commands.
pub fn examples(page: &str) -> Vec<Example> {
    blocks(page).iter().filter(|block| block.language == "console").flat_map(Block::examples).collect()
}

#[test]
fn blocks_are_found_with_their_commands() {
    let page = "a\n```console\n$ one\nits output\n\n$ two\n```\n\n1. b\n\n   ```\n   three\n     four\n   ```\n";
    let example = |command: &str, printed: &str| Example { command: command.to_owned(), printed: printed.to_owned() };
    assert_eq!(examples(page), [example("one", "its output\n\n"), example("two", "")]);
    let texts: Vec<String> = blocks(page).into_iter().map(|block| block.text).collect();
    assert_eq!(texts, ["$ one\nits output\n\n$ two\n", "three\n  four\n"]);
}
