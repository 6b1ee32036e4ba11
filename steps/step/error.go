package step

import (
	"errors"
	"fmt"
)

// Exit codes of every step binary and of the command line. A Workflow's
// retryStrategy tells them apart: only [ExitRetry] is worth another try.
const (
	ExitOK      = 0 // done; also: nothing to do, unchanged, stale, held, superseded
	ExitRetry   = 1 // a retry may mend it: network, 5xx, daemon gone, deadline, signal
	ExitInvalid = 2 // bad input or configuration: a retry is pointless
	ExitSource  = 3 // the source is at fault: Dockerfile missing, build failed
	ExitDrift   = 4 // of a check that was asked for, and found something that differs
)

// codedError carries the exit code with the error, so that wrapping keeps it.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// Invalidf makes an error that ends the process with [ExitInvalid]. The format
// is that of [fmt.Errorf], %w included.
func Invalidf(format string, args ...any) error {
	return &codedError{ExitInvalid, fmt.Errorf(format, args...)}
}

// Sourcef makes an error that ends the process with [ExitSource].
func Sourcef(format string, args ...any) error {
	return &codedError{ExitSource, fmt.Errorf(format, args...)}
}

// Retryf makes an error that ends the process with [ExitRetry], also when it
// wraps an error of another code.
func Retryf(format string, args ...any) error {
	return &codedError{ExitRetry, fmt.Errorf(format, args...)}
}

// ExitCode gives the exit code for err: that of the outermost coded error in
// its chain, [ExitRetry] when there is none, [ExitOK] for nil.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	var coded *codedError
	if errors.As(err, &coded) {
		return coded.code
	}
	return ExitRetry
}

// WithCode gives err an exit code that was decided elsewhere.
func WithCode(code int, err error) error { return &codedError{code, err} }
