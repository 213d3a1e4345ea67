//! The tree as text and as a Graphviz picture, for people.

use super::Tree;
use crate::policy::kind;
use std::fmt::Write;

impl Tree {
    fn label(&self, id: u32) -> String {
        let n = &self.nodes[id];
        let mut out = format!("[{}, {}) swa {}", n.depth, n.end(), n.swa);
        if n.is_leased() {
            let _ = write!(out, " leased {}+{}", n.leases, n.leased_children);
        }
        for &c in &n.ckpts {
            let c = &self.ckpts[c];
            let names: Vec<_> = kind::names(c.kinds).collect();
            let _ = write!(out, " @{} {}{}", c.end, names.join("|"), if c.matched { " matched" } else { "" });
        }
        out
    }

    /// One line a node, indented by depth; pages in half-open ranges, checkpoints as `@boundary kinds`.
    pub(crate) fn dump_text(&self) -> String {
        let mut out = String::new();
        for (_, root) in self.roots.iter() {
            let state = if root.attached { "" } else { " (cleared)" };
            let _ = writeln!(out, "root {}{state}", hex(&root.key));
            let mut stack: Vec<(u32, usize)> = self.children(root.node).map(|c| (c, 1)).collect();
            while let Some((id, indent)) = stack.pop() {
                let _ = writeln!(out, "{:indent$}{}", "", self.label(id), indent = indent * 2);
                stack.extend(self.children(id).map(|c| (c, indent + 1)));
            }
        }
        out
    }

    /// Graphviz source of the same.
    pub(crate) fn dump_dot(&self) -> String {
        let mut out = String::from("digraph tree {\n  rankdir=LR; node [shape=box, fontname=monospace];\n");
        for (id, n) in self.nodes.iter() {
            let (label, style) = if n.is_root() {
                (format!("root {}", hex(&self.roots[n.root].key)), "")
            } else {
                (self.label(id), if n.is_leased() { ", style=filled, fillcolor=lightblue" } else { "" })
            };
            let _ = writeln!(out, "  n{id} [label=\"{label}\"{style}];");
            if !n.is_root() {
                let _ = writeln!(out, "  n{} -> n{id};", n.parent);
            }
        }
        out.push_str("}\n");
        out
    }
}

fn hex(key: &[u8; 32]) -> String {
    key[..6].iter().map(|b| format!("{b:02x}")).collect()
}
