//! Children below their parents.

use std::collections::HashMap;

use lancet_procs::Row;

use crate::Forest;

/// A row of a forest: its index, and the steps that lead to it: `+` and `L` for a child with and without younger siblings,
/// `|` and blank where an ancestor has and has not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) index: usize,
    pub(crate) branch: Vec<u8>,
}

/// Orders rows that are sorted by their wish. Children of the first process stand beside it, since most were adopted.
pub(crate) fn forest(rows: &[Row], style: Forest) -> Vec<Leaf> {
    let mut children: HashMap<i32, Vec<usize>> = HashMap::new();
    let here: std::collections::HashSet<i32> = rows.iter().map(|row| row.pid.0).collect();
    let mut roots = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let parent = row.stat.parent.0;
        if here.contains(&parent) && parent != row.pid.0 {
            children.entry(parent).or_default().push(index);
        } else {
            roots.push(index);
        }
    }
    // Of the roots the last in the order by parents comes first.
    roots.sort_by_key(|&index| rows[index].stat.parent);
    let mut leaves = Vec::with_capacity(rows.len());
    let mut waiting: Vec<(usize, Vec<u8>, bool)> = roots
        .into_iter()
        .map(|index| (index, Vec::new(), false))
        .collect();
    while let Some((index, branch, more)) = waiting.pop() {
        let pid = rows[index].pid.0;
        let mut below = branch.clone();
        if let Some(last) = below.last_mut() {
            *last = if more { b'|' } else { b' ' };
        }
        leaves.push(Leaf { index, branch });
        // Taken out, so that pids that were reused during the scan can't lead round in a circle.
        let found = children.remove(&pid).unwrap_or_default();
        let beside = pid == 1 && style == Forest::Lines;
        for (at, &child) in found.iter().enumerate().rev() {
            let more = at + 1 < found.len();
            let mut branch = below.clone();
            if !beside {
                branch.push(if more { b'+' } else { b'L' });
            } else if let Some(last) = branch.last_mut() {
                *last = if more { b'+' } else { b'L' };
            }
            waiting.push((child, branch, more));
        }
    }
    leaves
}
