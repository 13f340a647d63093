//! After detaching a target is as it was.
