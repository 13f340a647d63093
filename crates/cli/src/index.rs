//! `index`: the process index as a foreground service.

use anyhow::{Context, Result, anyhow};
use lancet_procs::served::{Server, socket_paths};
use lancet_ps::Names;

use crate::options::IndexOptions;

pub(crate) fn index(options: &IndexOptions) -> Result<u8> {
    let group = match &options.group {
        None => None,
        Some(name) => {
            let known = name
                .parse()
                .ok()
                .or_else(|| Names::default().group_id(name));
            Some(known.ok_or_else(|| anyhow!("{name:?} is not a group"))?)
        }
    };
    let path = match &options.socket {
        Some(path) => path.clone(),
        // The first place that a client of this user looks at.
        None => socket_paths().swap_remove(0),
    };
    let named = || format!("the index can't be served at {}", path.display());
    if options.socket.is_none()
        && let Some(folder) = path.parent()
    {
        std::fs::create_dir_all(folder).with_context(named)?;
    }
    let mut server = Server::open(&path, group).with_context(named)?;
    eprintln!("Serving the process index at {}", path.display());
    server.run().with_context(named)?;
    Ok(0)
}
