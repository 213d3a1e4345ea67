//! `GCacheClient`: the Rust client for Python, with the interface of `mimo_cache.gcache` and the GIL released while a call waits
//! and copies.

use super::gcache_args::{Memory, check_overlaps, id, ids, key, keys, matching, nodes, seconds};
use super::gcache_results::{self as results, Where};
use super::{args, errors, gcache_wait as wait};
use crate::client::{BreakerState, Client, ClientConfig, Destination, GetItem, KeyRun, PutItem};
use crate::error::{Error, Result};
use crate::ring::{DEFAULT_BUCKETS, MAX_BUCKETS};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

const ITEM: &str = "a PutItem, or a tuple (id, data[, page_index[, superseded[, layout]]])";

/// A client of a GCache cluster for engines: many nodes, read straight into the caller's memory.
///
/// The calls of `mimo_cache.gcache.Client`, with the same results, and `put_later`, `flush`, `metrics` and
/// `breakers`. Any number of threads may call; the GIL is released while they wait and copy. `mimo_cache.gcache`
/// explains names, buffers, time and errors.
#[pyclass(frozen, name = "GCacheClient", module = "mimo_cache")]
pub(super) struct PyGCacheClient {
    /// `None` once it is closed.
    client: RwLock<Option<Arc<Client>>>,
}

impl PyGCacheClient {
    fn client(&self, py: Python<'_>) -> PyResult<Arc<Client>> {
        let client = self.client.read().unwrap_or_else(|e| e.into_inner()).clone();
        let client = client.ok_or_else(|| results::closed(py))?;
        if !client.is_of_this_process() {
            return Err(errors::forked(py, "client"));
        }
        Ok(client)
    }

    /// Runs a call with the GIL released. A signal whose handler raises, as ^C does, cancels it.
    fn run<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&Client) -> Result<R> + Send) -> PyResult<R> {
        let client = self.client(py)?;
        let result = py.detach(|| {
            let _running = wait::Running::new();
            let result = catch_unwind(AssertUnwindSafe(|| call(&client)));
            // With the GIL released, as the last holder of a client that was closed meanwhile ends its threads.
            drop(client);
            result.unwrap_or_else(|_| Err(Error::Integrity("a call failed inside the GCache client".to_string())))
        });
        result.map_err(|error| match (error, wait::raised()) {
            (Error::Interrupted, Some(raised)) => raised,
            (error, _) => errors::to_py(py, error),
        })
    }
}

#[pymethods]
impl PyGCacheClient {
    /// `nodes`: `mimo_cache.gcache.Node`s or text as `name=address*weight`; or `nodes_file`: a TOML file of them, read again when
    /// it changes. No node is asked before the first call.
    ///
    /// `deadline`, seconds, is what a call may take. `connections` is the most to one node; `queue_bytes` bounds what
    /// `put_later` may hold; `fast_path` allows the same-host path for reads. The rest as `mimo_cache.gcache.connect`.
    #[new]
    #[pyo3(signature = (nodes=None, *, nodes_file=None, tenant=None, token=None, deadline=None, buckets=None, name=None,
        connections=None, queue_bytes=None, fast_path=None))]
    #[pyo3(text_signature = "(nodes=None, *, nodes_file=None, tenant=0, token=None, deadline=1.0, buckets=1048576, \
        name=None, connections=2, queue_bytes=268435456, fast_path=True)")]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        nodes: Option<&Bound<'_, PyAny>>,
        nodes_file: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
        token: Option<&Bound<'_, PyAny>>,
        deadline: Option<&Bound<'_, PyAny>>,
        buckets: Option<&Bound<'_, PyAny>>,
        name: Option<&Bound<'_, PyAny>>,
        connections: Option<&Bound<'_, PyAny>>,
        queue_bytes: Option<&Bound<'_, PyAny>>,
        fast_path: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let defaults = ClientConfig::default();
        let config = ClientConfig {
            tenant: args::int_or(tenant, 0, "tenant", 0, u64::MAX)?,
            token: token.map(|t| args::text(Some(t), "", "token").map(|t| t.into_owned())).transpose()?,
            deadline: seconds(deadline, "deadline")?.unwrap_or(defaults.deadline),
            buckets: args::int_or(buckets, DEFAULT_BUCKETS.into(), "buckets", 1, MAX_BUCKETS.into())? as u32,
            name: match name {
                Some(name) => args::text(Some(name), "", "name")?.into_owned(),
                None => defaults.name.clone(),
            },
            connections: args::int_or(connections, defaults.connections as u64, "connections", 1, 64)? as usize,
            queue_bytes: args::int_or(queue_bytes, defaults.queue_bytes as u64, "queue_bytes", 0, 1 << 40)? as usize,
            fast_path: args::flag(fast_path, true, "fast_path")?,
            ..defaults
        };
        let made = match (nodes, nodes_file) {
            (Some(list), None) => {
                let members = self::nodes(list)?;
                py.detach(|| Client::of(config, members))
            }
            (None, Some(file)) => {
                let path: PathBuf = file.extract().map_err(|_| {
                    errors::invalid(py, "nodes_file", args::type_name(file), "a path (str or PathLike)")
                })?;
                py.detach(|| Client::of_file(config, &path))
            }
            _ => return Err(errors::invalid(py, "nodes and nodes_file", "both or none of them", "one of them")),
        };
        let client = made.map_err(|error| errors::to_py(py, error))?.interrupted_by(wait::interrupted);
        Ok(PyGCacheClient { client: RwLock::new(Some(Arc::new(client))) })
    }

    /// For each key the mask of the parts that are there: bit p for part p; 0 where its node cannot be asked.
    ///
    /// With `lease_ms` they stay for so long, as far as the nodes' lease bytes go. `extents`: for each key that of
    /// its page; None only where every page is an extent of its own. `want`: a key that lacks any of these parts is
    /// also asked of the owner before the last change of membership.
    #[pyo3(signature = (keys, extents=None, lease_ms=None, *, want=None, deadline=None))]
    #[pyo3(text_signature = "($self, keys, extents=None, lease_ms=0, *, want=18446744073709551615, deadline=None)")]
    fn exists(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        extents: Option<&Bound<'_, PyAny>>,
        lease_ms: Option<&Bound<'_, PyAny>>,
        want: Option<&Bound<'_, PyAny>>,
        deadline: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<u64>> {
        let keys = self::keys(keys, "key")?;
        let extents = match extents {
            None => keys.clone(),
            Some(extents) => {
                let all = matching(extents, "extents", keys.len())?;
                all.iter().map(|one| key(one, "extent")).collect::<PyResult<_>>()?
            }
        };
        let lease_ms = args::int_or(lease_ms, 0, "lease_ms", 0, u32::MAX.into())? as u32;
        let want = args::int_or(want, u64::MAX, "want", 0, u64::MAX)?;
        let within = seconds(deadline, "deadline")?;
        let mut runs: Vec<KeyRun<'_>> = Vec::new();
        let mut start = 0;
        for end in 1..=keys.len() {
            if end == keys.len() || extents[end] != extents[start] {
                runs.push(KeyRun { extent: extents[start], keys: &keys[start..end] });
                start = end;
            }
        }
        let presence = self.run(py, |client| client.exists(&runs, want, lease_ms, within))?;
        match presence.refused.first() {
            Some(refusal) if presence.all_refused => Err(results::refused(py, refusal)),
            _ => Ok(presence.masks),
        }
    }

    /// One result for each id. With `into`, one writable buffer for each id (or a list of buffers, to be filled
    /// one after the other), bytes go there as they come; what is in a buffer without a hit is anything.
    #[pyo3(signature = (ids, into=None, *, deadline=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        into: Option<&Bound<'py, PyAny>>,
        deadline: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let ids = self::ids(ids)?;
        let within = seconds(deadline, "deadline")?;
        let given = into.map(|into| matching(into, "into", ids.len())).transpose()?;
        let memory: Vec<Memory<'_>> = match &given {
            Some(given) => given.iter().map(|one| Memory::new(one, "buffer of into", true)).collect::<PyResult<_>>()?,
            None => Vec::new(),
        };
        check_overlaps(py, &memory)?;
        let mut items: Vec<GetItem<'_>> = ids
            .iter()
            .enumerate()
            .map(|(i, id)| match memory.get(i) {
                // SAFETY: writable and without overlaps, as checked; `memory` outlives `items`.
                Some(memory) => GetItem::new(*id, Destination::Segments(unsafe { memory.slices_mut() }.collect())),
                None => GetItem::new(*id, Destination::Grow(Vec::new())),
            })
            .collect();
        self.run(py, |client| client.get(&mut items, within))?;
        results::unless_all_refused(py, items.iter().map(|item| results::refusal_of_got(&item.got)))?;
        let taken: Vec<_> = items.into_iter().map(|item| (item.got, item.into)).collect();
        let result = |(i, (got, into)): (usize, (crate::client::Got, Destination<'_>))| {
            let bytes = match (into, memory.get(i).and_then(Memory::only)) {
                (Destination::Grow(value), _) => Where::Here(value),
                (_, Some(buffer)) => Where::There(buffer),
                _ => Where::Spread,
            };
            results::got(py, &got, bytes)
        };
        taken.into_iter().enumerate().map(result).collect()
    }

    /// A status for each item. Bytes of objects that are there already are not sent. `data` may be a list of
    /// buffers; it must not change before this returns.
    #[pyo3(signature = (items, *, deadline=None))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        items: &Bound<'py, PyAny>,
        deadline: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let given = put_items(items)?;
        let within = seconds(deadline, "deadline")?;
        // SAFETY: `given` holds the buffers for longer than the items live; that nobody writes there is the caller's promise.
        let items: Vec<PutItem<'_>> = given.iter().map(|g| unsafe { g.item() }).collect();
        let stored = self.run(py, |client| client.put(&items, within))?;
        results::unless_all_refused(py, stored.iter().map(results::refusal_of_stored))?;
        stored.iter().map(|s| results::stored(py, s)).collect()
    }

    /// Stores without waiting: values are copied into a bounded queue and sent in the background, or dropped and
    /// counted in `metrics()`. Returns how many were taken.
    #[pyo3(signature = (items))]
    fn put_later(&self, py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<usize> {
        let given = put_items(items)?;
        // SAFETY: as in `put`.
        let items: Vec<PutItem<'_>> = given.iter().map(|g| unsafe { g.item() }).collect();
        self.run(py, |client| client.put_later(&items))
    }

    /// Waits until what `put_later` took was sent or dropped. False: not within the deadline.
    #[pyo3(signature = (*, deadline=None))]
    fn flush(&self, py: Python<'_>, deadline: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let within = seconds(deadline, "deadline")?;
        self.run(py, |client| client.flush(within))
    }

    /// Marks objects as used and returns how many are there. Give the tail of a prefix first and its head last.
    #[pyo3(signature = (ids, *, deadline=None))]
    fn touch(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, deadline: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let (ids, within) = (self::ids(ids)?, seconds(deadline, "deadline")?);
        let counted = self.run(py, |client| client.touch(&ids, within))?;
        Ok(results::accepted(py, counted)?.count)
    }

    /// Forgets objects.
    #[pyo3(signature = (ids, *, deadline=None))]
    fn delete<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        deadline: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (ids, within) = (self::ids(ids)?, seconds(deadline, "deadline")?);
        let counted = self.run(py, |client| client.delete(&ids, within))?;
        results::deleted(py, counted)
    }

    /// Has the nodes compare values with their CRCs and drop those that differ.
    #[pyo3(signature = (ids, *, deadline=None))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        deadline: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (ids, within) = (self::ids(ids)?, seconds(deadline, "deadline")?);
        let counted = self.run(py, |client| client.verify(&ids, within))?;
        results::verified(py, counted)
    }

    /// For each node's name its counts and sizes, or None where it did not answer.
    #[pyo3(signature = (*, deadline=None))]
    fn stats<'py>(&self, py: Python<'py>, deadline: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyDict>> {
        let within = seconds(deadline, "deadline")?;
        let found = PyDict::new(py);
        for (name, reply) in self.run(py, |client| client.stats(within))? {
            found.set_item(name, reply.map(|reply| results::stats(py, &reply)).transpose()?)?;
        }
        Ok(found)
    }

    /// Name of the node that owns an extent, by the chain key of its first page, without asking anybody.
    #[pyo3(signature = (extent))]
    fn locate(&self, py: Python<'_>, extent: &Bound<'_, PyAny>) -> PyResult<String> {
        let extent = key(extent, "extent")?;
        let none = || errors::invalid(py, "nodes", "an empty list", "a list of nodes");
        self.client(py)?.locate(&extent).ok_or_else(none)
    }

    /// For each node's name "closed", "open" or "half-open": what its circuit breaker is.
    #[pyo3(signature = ())]
    fn breakers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        for (name, state) in self.client(py)?.nodes() {
            let word = match state {
                BreakerState::Closed => "closed",
                BreakerState::Open => "open",
                BreakerState::HalfOpen => "half-open",
            };
            found.set_item(name, word)?;
        }
        Ok(found)
    }

    /// For each node's name what it said, as a `Refused`, when it refused a call last; nodes that have answered one
    /// since are left out.
    #[pyo3(signature = ())]
    fn refusals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        for (name, refusal) in self.client(py)?.refusals() {
            found.set_item(name, results::refusal_object(py, &refusal)?)?;
        }
        Ok(found)
    }

    /// Everything the client has counted, by name.
    #[pyo3(signature = ())]
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        let client = self.client(py)?;
        client.metrics().snapshot().iter().try_for_each(|(name, value)| found.set_item(name, value))?;
        Ok(found)
    }

    /// Why the list of nodes may be old; None while its file is read and makes sense.
    #[getter]
    fn membership_trouble(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.client(py)?.membership_trouble())
    }

    /// Ends the connections, and with them the leases. Waits for calls under way in other threads, which end with
    /// their deadlines at the latest; new ones raise `Closed`.
    #[pyo3(signature = ())]
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.client.write().unwrap_or_else(|e| e.into_inner()).take() {
            Some(client) => wait::end(py, client),
            None => Ok(()),
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

/// An item to put, and its memory.
struct Given<'py> {
    id: crate::client::ObjectId,
    memory: Memory<'py>,
    page_index: u32,
    superseded: bool,
    layout: u32,
}

impl Given<'_> {
    /// # Safety
    /// As [`Memory::slices`].
    unsafe fn item<'a>(&self) -> PutItem<'a> {
        let &Given { id, page_index, superseded, layout, .. } = self;
        // SAFETY: the caller's promise.
        let data: SmallVec<[&[u8]; 1]> = unsafe { self.memory.slices() }.collect();
        PutItem { id, data, page_index, superseded, layout }
    }
}

fn put_items<'py>(items: &Bound<'py, PyAny>) -> PyResult<Vec<Given<'py>>> {
    let py = items.py();
    let all = items.try_iter().map_err(|_| errors::invalid(py, "items", args::type_name(items), "PutItems"))?;
    all.map(|one| {
        let one = one?;
        let bad = || errors::invalid(py, "item", args::type_name(&one), ITEM);
        let parts = one.cast::<PyTuple>().map_err(|_| bad())?;
        if !(2..=5).contains(&parts.len()) {
            return Err(bad());
        }
        let part = |i| parts.get_item(i).ok();
        let u32_max = u64::from(u32::MAX);
        Ok(Given {
            id: id(&parts.get_item(0)?)?,
            memory: Memory::new(&parts.get_item(1)?, "data of an item", false)?,
            page_index: args::int_or(part(2).as_ref(), 0, "page_index", 0, u32_max)? as u32,
            superseded: args::flag(part(3).as_ref(), false, "superseded")?,
            layout: args::int_or(part(4).as_ref(), 0, "layout", 0, u32_max)? as u32,
        })
    })
    .collect()
}
