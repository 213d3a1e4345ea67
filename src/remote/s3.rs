//! The backend over the `object_store` crate: S3 and what speaks like it, or any other store of that crate in tests.
//!
//! Credentials come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, or the variables
//! of a role) and stay in the client. What is said of an error is the kind and the status, never the answer's text: stores
//! repeat there what they were asked with.

use super::bucket::{Answer, Bucket, Kept, Refused};
use super::limit::Bounded;
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{BoxStream, StreamExt};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// Where a bucket is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Config {
    /// Its name.
    pub bucket: String,
    /// `http://` or `https://`, host and port; none: Amazon's.
    pub endpoint: Option<String>,
    /// Its region; none: as the environment says, else `us-east-1`.
    pub region: Option<String>,
    /// Longest time of one request.
    pub timeout: Duration,
}

/// A store of the crate.
pub struct Store {
    store: Arc<dyn ObjectStore>,
    shown: String,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Store {
    /// Any store; `shown` names it in logs.
    pub fn over(store: Arc<dyn ObjectStore>, shown: impl Into<String>) -> Store {
        Store { store, shown: shown.into() }
    }

    /// A bucket. Nothing is asked yet: a store that is gone does not keep a node from starting.
    ///
    /// # Errors
    /// A sentence: settings that cannot work, or no certificates on this machine.
    pub fn s3(config: &S3Config) -> Result<Store, String> {
        // The client has no algorithms of its own. Somebody else's choice in this process is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let plain = config.endpoint.as_ref().is_some_and(|e| e.starts_with("http://"));
        let options = ClientOptions::new()
            .with_timeout(config.timeout)
            .with_connect_timeout(config.timeout.min(Duration::from_secs(5)))
            .with_allow_http(plain);
        // The tier tries again itself, and counts that.
        let retry = RetryConfig { max_retries: 0, retry_timeout: config.timeout, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&config.bucket)
            .with_client_options(options)
            .with_http_connector(Bounded)
            .with_retry(retry)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // One object, one request: not every store knows deletes of many.
            .with_disable_bulk_delete(true)
            // TLS and our own checksums guard the bytes; a SHA-256 of each would cost more than all else. Without TLS it stays.
            .with_unsigned_payload(!plain);
        if let Some(endpoint) = &config.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &config.region {
            builder = builder.with_region(region);
        }
        let store = builder.build().map_err(|e| format!("remote.url: {}", kind(&e)))?;
        let at = config.endpoint.as_deref().unwrap_or("Amazon");
        Ok(Store::over(Arc::new(store), format!("s3://{} at {at}", config.bucket)))
    }
}

impl Bucket for Store {
    fn put<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<Kept, Refused>> {
        let payload: PutPayload = parts.into_iter().collect();
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        async move {
            match self.store.put_opts(&Path::from(name), payload, options).await {
                Ok(_) => Ok(Kept::Stored),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(Kept::Present),
                Err(error) => Err(refused(&error)),
            }
        }
        .boxed()
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Answer>, Refused>> {
        async move {
            match self.store.get(&Path::from(name)).await {
                Ok(found) => {
                    let bytes = found.meta.size;
                    let body = found.into_stream().map(|part| part.map_err(|error| refused(&error))).boxed();
                    Ok(Some(Answer { bytes, body }))
                }
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(refused(&error)),
            }
        }
        .boxed()
    }

    fn list(&self, start: &str, after: &str) -> BoxStream<'static, Result<String, Refused>> {
        let start = Path::from(start);
        let found = match after {
            "" => self.store.list(Some(&start)),
            after => self.store.list_with_offset(Some(&start), &Path::from(after)),
        };
        found.map(|object| object.map(|meta| meta.location.into()).map_err(|error| refused(&error))).boxed()
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refused>> {
        async move {
            match self.store.delete(&Path::from(name)).await {
                Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(refused(&error)),
            }
        }
        .boxed()
    }
}

fn refused(error: &Error) -> Refused {
    let certain = matches!(
        error,
        Error::NotFound { .. }
            | Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
    );
    Refused { sentence: kind(error), unsure: !certain }
}

/// What happened, in words that hold nothing secret.
fn kind(error: &Error) -> String {
    let what = match error {
        Error::NotFound { .. } => "the bucket is not there",
        Error::PermissionDenied { .. } => "permission denied",
        Error::Unauthenticated { .. } => "the credentials are not accepted",
        Error::InvalidPath { .. } => "a name that the store cannot have",
        Error::NotSupported { .. } | Error::NotImplemented { .. } => "the store cannot do that",
        Error::UnknownConfigurationKey { key, .. } => return format!("the setting {key} is not known"),
        _ => "the request failed",
    };
    let mut status = String::new();
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(http) = cause.downcast_ref::<object_store::client::HttpError>() {
            status = format!(": {:?}", http.kind()).to_lowercase();
        }
        source = cause.source();
    }
    // The crate tells the number of a status in its text alone.
    let text = error.to_string();
    let number = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3));
    if let Some(number) = number.filter(|n| n.bytes().all(|b| b.is_ascii_digit())) {
        status = format!(": status {number}");
    }
    format!("{what}{status}")
}
