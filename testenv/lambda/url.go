package lambda

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"
)

// front is a function URL with responses streamed (InvokeMode RESPONSE_STREAM) and without authorisation of its own.
type front struct{ f *Function }

const (
	streamed   = "application/vnd.awslambda.http-integration-response" // content type of an answer with a prelude
	maxPrelude = 64 << 10
)

// prelude is what an answer says before its body.
type prelude struct {
	StatusCode int               `json:"statusCode"`
	Headers    map[string]string `json:"headers"`
	Cookies    []string          `json:"cookies"`
}

// ServeHTTP makes an event of a request and a response of the function's answer, as both come.
func (u front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	event, err := eventOf(r)
	if err != nil {
		http.Error(w, `{"Message":"`+err.Error()+`"}`, http.StatusBadRequest)
		return
	}
	if len(event) > maxPayload {
		http.Error(w, `{"Message":"Request Entity Too Large"}`, http.StatusRequestEntityTooLarge)
		return
	}
	a, err := u.f.invoke(event)
	switch {
	case errors.Is(err, ErrThrottled):
		http.Error(w, `{"Reason":"ReservedFunctionConcurrentInvocationLimitExceeded","Type":"User","message":"Rate Exceeded."}`, http.StatusTooManyRequests)
		return
	case err != nil:
		badGateway(w)
		return
	}
	defer a.release()
	body := bufio.NewReader(a.body)
	if a.failed {
		payload, _ := io.ReadAll(body) // what came of it
		u.f.note(failureOf(payload))
		badGateway(w)
		return
	}
	p := prelude{StatusCode: http.StatusOK, Headers: map[string]string{"Content-Type": a.header.Get("Content-Type")}}
	if a.header.Get("Content-Type") == streamed {
		if p, err = readPrelude(body); err != nil {
			_ = u.f.failed("Runtime.InvalidPrelude", err.Error())
			_, _ = io.Copy(io.Discard, body)
			badGateway(w)
			return
		}
	}
	for k, v := range p.Headers {
		w.Header().Set(k, v)
	}
	for _, c := range p.Cookies {
		w.Header().Add("Set-Cookie", c)
	}
	w.WriteHeader(p.StatusCode)
	whole := relay(w, body)
	if kind := a.trailer().Get("Lambda-Runtime-Function-Error-Type"); kind != "" {
		text, _ := base64.StdEncoding.DecodeString(a.trailer().Get("Lambda-Runtime-Function-Error-Body"))
		u.f.note(Failure{kind, failureOf(text).Message})
		whole = false
	} else if !whole {
		_ = u.f.failed("Runtime.TruncatedResponse", "")
	}
	if !whole {
		panic(http.ErrAbortHandler) // the connection is cut: the client must not take the answer for whole
	}
}

func badGateway(w http.ResponseWriter) {
	http.Error(w, "Internal Server Error", http.StatusBadGateway)
}

// relay passes an answer on, each part as it comes, and reports whether it came to its end. It takes the rest when the
// client has left.
func relay(w http.ResponseWriter, body io.Reader) (whole bool) {
	out := http.NewResponseController(w)
	err := out.Flush()
	for buf := make([]byte, 32<<10); ; {
		n, rerr := body.Read(buf)
		if n > 0 && err == nil {
			if _, err = w.Write(buf[:n]); err == nil {
				err = out.Flush()
			}
		}
		if rerr != nil {
			return rerr == io.EOF
		}
	}
}

func readPrelude(body *bufio.Reader) (p prelude, err error) {
	var text []byte
	for end := make([]byte, 8); !bytes.HasSuffix(text, end); {
		b, err := body.ReadByte()
		if err != nil {
			return p, fmt.Errorf("the answer ends within its prelude: %w", err)
		}
		if text = append(text, b); len(text) > maxPrelude {
			return p, errors.New("no end of the prelude")
		}
	}
	if err := json.Unmarshal(text[:len(text)-8], &p); err != nil {
		return p, err
	}
	if p.StatusCode < 100 || p.StatusCode > 599 {
		return p, fmt.Errorf("status %d", p.StatusCode)
	}
	return p, nil
}

// eventOf is a request in the form of events, version 2.0.
func eventOf(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	ip, _, _ := net.SplitHostPort(r.RemoteAddr)
	headers := map[string]string{"host": r.Host, "x-forwarded-for": ip, "x-forwarded-proto": "https", "x-forwarded-port": "443"}
	for k, v := range r.Header {
		if k != "Cookie" {
			headers[strings.ToLower(k)] = strings.Join(v, ",")
		}
	}
	event := events.LambdaFunctionURLRequest{
		Version: "2.0", RawPath: r.URL.EscapedPath(), RawQueryString: r.URL.RawQuery, Headers: headers,
		RequestContext: events.LambdaFunctionURLRequestContext{
			AccountID: "anonymous", APIID: "test", DomainName: r.Host, DomainPrefix: "test",
			HTTP: events.LambdaFunctionURLRequestContextHTTPDescription{
				Method: r.Method, Path: r.URL.Path, Protocol: r.Proto, SourceIP: ip, UserAgent: r.UserAgent(),
			},
		},
	}
	for _, c := range r.Cookies() {
		event.Cookies = append(event.Cookies, c.Name+"="+c.Value)
	}
	if isText(r.Header.Get("Content-Type")) && utf8.Valid(body) {
		event.Body = string(body)
	} else if len(body) > 0 {
		event.Body, event.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	return json.Marshal(event)
}

// isText reports the content types that Lambda takes for text; all others are passed in base64.
func isText(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.HasPrefix(kind, "text/") || kind == "application/json" || kind == "application/javascript" || kind == "application/xml"
}
