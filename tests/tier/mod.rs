//! Tests of the host tier that share a device made of arrays.

mod jobs;
mod model;
mod world;
