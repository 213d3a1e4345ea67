//! Answers that the client of the store takes whole, as those of errors and listings, are bounded: it would read them to
//! their end, however long they are. The body of a value that is read passes; its reader bounds it.

use http_body_util::{BodyExt, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use std::pin::Pin;

/// Longest part of a listing. One of 1000 names of the longest kind has a fifth of it.
const LIST_BYTES: usize = 4 << 20;
/// Longest of all other answers that are taken whole.
const OTHER_BYTES: usize = 64 << 10;

/// Makes clients whose answers are bounded.
#[derive(Debug)]
pub struct Bounded;

impl HttpConnector for Bounded {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Service(HttpClient);

impl HttpService for Service {
    // As the macro of the trait would write it.
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let (is_get, query) = (request.method() == http::Method::GET, request.uri().query());
            let reads_value = is_get && query.is_none();
            let most = if is_get && query.is_some() { LIST_BYTES } else { OTHER_BYTES };
            let answer = self.0.execute(request).await?;
            if reads_value && answer.status().is_success() {
                return Ok(answer);
            }
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, most).map_err(|e| HttpError::new_boxed(HttpErrorKind::Decode, e));
            Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
        })
    }
}
