//! What is taken in of requests: for each call what the kubelet may mean by it, and for the calls of all resources a sum.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::Request;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::codegen::{Service as _, StdError};

use crate::endpoint::MAX_LIST;
use crate::proto::device_plugin::device_plugin_server::DevicePluginServer;
use crate::service::Service;

/// Bytes of all requests that are being taken in: several of the longest, where the kubelet sends one at a time.
const MOST: usize = 16 << 20;
/// The longest message but a question for a preference: thousands of ids.
const MAX_MESSAGE: usize = 1 << 20;
/// The ids of the longest list fit: the kubelet names them all when it asks which it should prefer.
const MAX_QUESTION: usize = MAX_LIST;
/// How the path of such a question ends.
const QUESTION: &str = "/GetPreferredAllocation";

/// Room for requests, of all resources together.
#[derive(Debug, Clone)]
pub(crate) struct Intake(Arc<Semaphore>);

impl Default for Intake {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }
}

/// A resource's service within these bounds.
#[derive(Clone)]
pub(crate) struct Bounded {
    questions: DevicePluginServer<Service>,
    others: DevicePluginServer<Service>,
    intake: Intake,
}

impl Bounded {
    pub fn new(service: Service, intake: Intake) -> Self {
        let service = Arc::new(service);
        let up_to = |most| {
            DevicePluginServer::from_arc(Arc::clone(&service))
                .max_decoding_message_size(most)
                .max_encoding_message_size(usize::MAX)
        };
        Self {
            questions: up_to(MAX_QUESTION),
            others: up_to(MAX_MESSAGE),
            intake,
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Bounded {
    type Response = hyper::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = tonic::codegen::BoxFuture<Self::Response, Self::Error>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let is_question = request.uri().path().ends_with(QUESTION);
        let server = if is_question {
            &self.questions
        } else {
            &self.others
        };
        let request = request.map(|body| Counted::new(body, self.intake.clone()));
        server.clone().call(request)
    }
}

/// A request's body; what came of it counts until it is dropped, which is when its message was read.
struct Counted<B> {
    body: B,
    intake: Intake,
    taken: Option<OwnedSemaphorePermit>,
}

impl<B> Counted<B> {
    fn new(body: B, intake: Intake) -> Self {
        Self {
            body,
            intake,
            taken: None,
        }
    }

    /// Counts bytes that came.
    fn take(&mut self, length: usize) -> Result<(), Status> {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let Ok(more) = Arc::clone(&self.intake.0).try_acquire_many_owned(length) else {
            return Err(Status::resource_exhausted(format!(
                "the requests under way have more than {} MiB; ask again when some were answered",
                MOST >> 20
            )));
        };
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}

impl<B> Body for Counted<B>
where
    B: Body<Data = Bytes, Error: Into<StdError>> + Unpin,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = self.get_mut();
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let counted = frame.map_err(Into::into).and_then(|frame| {
            this.take(frame.data_ref().map_or(0, Bytes::len))?;
            Ok(frame)
        });
        Poll::Ready(Some(counted))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(body: &mut Counted<String>) -> Result<usize, tonic::Code> {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        match frame.unwrap() {
            Ok(frame) => Ok(frame.data_ref().unwrap().len()),
            Err(error) => Err(error.downcast_ref::<Status>().unwrap().code()),
        }
    }

    #[tokio::test]
    async fn requests_that_are_being_taken_in_have_a_sum() {
        let intake = Intake::default();
        let body = |length: usize| Counted::new("x".repeat(length), intake.clone());
        let mut first = body(MOST - 10);
        assert_eq!(read(&mut first).await, Ok(MOST - 10));
        let (mut fits, mut over) = (body(10), body(1));
        assert_eq!(read(&mut fits).await, Ok(10));
        assert_eq!(read(&mut over).await, Err(tonic::Code::ResourceExhausted));
        drop((first, fits));
        assert_eq!(read(&mut body(MOST)).await, Ok(MOST));
        assert_eq!(
            intake.0.available_permits(),
            MOST,
            "each gave its part back"
        );
    }
}
