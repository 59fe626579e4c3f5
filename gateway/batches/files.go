package batches

import (
	"errors"
	"io"
	"io/fs"
	"mime/multipart"
	"os"
	"strconv"
	"strings"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/web"
	"reveille/infra/jsonscan"
	"reveille/infra/term"
)

// Limits of files.
const (
	MaxFile     = 200 << 20           // bytes of an uploaded file
	maxFiles    = 10_000              // of an API key
	maxParts    = 16                  // of a form
	maxField    = 256                 // bytes of a field of the form
	retention   = 30 * 24 * time.Hour // of files and batches, unless a client wants less
	minLifetime = time.Hour
)

// File is a file as clients see it.
type File struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at"`
	ExpiresAt int64  `json:"expires_at"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"`
	Status    string `json:"status"`
}

func newFile(id, purpose, name string, size int64, now time.Time, lifetime time.Duration) File {
	return File{id, "file", size, now.Unix(), now.Add(lifetime).Unix(), name, purpose, "processed"}
}

func (f *File) expired(now time.Time) bool { return now.Unix() >= f.ExpiresAt }

// FileCreate is POST /files. body is the request's; its errors are *api.Error.
func (s *Service) FileCreate(r *web.Request, body io.Reader) error {
	boundary, ok := jsonscan.Boundary(string(r.Ctx.Request.Header.ContentType()))
	if !ok {
		return api.New(api.UnsupportedMediaType, "This route takes multipart/form-data.")
	}
	tenant := s.cfg.Tenant(&r.Key)
	f, drop, err := s.newUpload(tenant)
	if err != nil {
		return err
	}
	defer drop()
	form, err := s.readForm(multipart.NewReader(body, boundary), f)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, body); err != nil { // so that the connection can be used again
		return err
	}
	lifetime, err := form.check()
	if err != nil {
		return err
	}
	file, err := s.keepUpload(tenant, f, form.filename, form.size, time.Now(), lifetime)
	if err != nil {
		return err
	}
	return r.Reply(200, file)
}

// newUpload makes a file for what a key uploads. drop removes it, unless keepUpload has kept it.
func (s *Service) newUpload(tenant string) (f *os.File, drop func(), err error) {
	if err := os.MkdirAll(s.path(tenant, ""), 0o700); err != nil {
		return nil, nil, folderError(err)
	}
	ids, err := s.ids(tenant, filePrefix)
	if err != nil {
		return nil, nil, err
	} else if len(ids) >= maxFiles {
		return nil, nil, api.Newf(api.DiskFull, "This key has %d files; delete some first.", maxFiles)
	}
	if f, err = os.CreateTemp(s.path(tenant, ""), uploadPrefix); err != nil {
		return nil, nil, folderError(err)
	}
	return f, func() { _ = f.Close(); _ = s.remove(f.Name()) }, nil
}

// keepUpload makes an upload a file of the key.
func (s *Service) keepUpload(tenant string, f *os.File, name string, size int64, now time.Time, lifetime time.Duration) (File, error) {
	file := newFile(newID(filePrefix, now), "batch", name, size, now, lifetime)
	return file, folderError(errors.Join(f.Sync(), os.Rename(f.Name(), s.path(tenant, file.ID)), s.write(tenant, file.ID, file)))
}

// form is an upload.
type form struct {
	fields   map[string]string
	filename string
	size     int64 // negative: no file came
}

// readForm reads a form, whose file goes to f.
func (s *Service) readForm(parts *multipart.Reader, f *os.File) (form, error) {
	in := form{fields: map[string]string{}, size: -1}
	for range maxParts {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return in, nil
		} else if err != nil {
			return in, formError(err)
		}
		name := part.FormName()
		switch {
		case name == "file" && in.size >= 0:
			return in, api.New(api.InvalidRequest, "Send one file at a time.").WithParam("file")
		case name == "file":
			in.filename = strings.ToValidUTF8(term.Clip(part.FileName(), 200), "\uFFFD")
			if in.size, err = io.Copy(bounded{s, f}, part); err != nil {
				return in, formError(err)
			}
		default:
			value, err := io.ReadAll(io.LimitReader(part, maxField+1))
			if err != nil {
				return in, formError(err)
			} else if len(value) > maxField {
				return in, api.New(api.InvalidType, "A field of the form is too long.").WithParam(strings.ToValidUTF8(term.Clip(name, 100), "\uFFFD"))
			}
			in.fields[name] = string(value)
		}
	}
	return in, api.Newf(api.InvalidRequest, "The form has more than %d parts.", maxParts)
}

// formError is the error of a form that cannot be read. Those of the request's body and of the folder stay.
func formError(err error) error {
	if _, is := errors.AsType[*api.Error](err); is {
		return err
	}
	if path, is := errors.AsType[*fs.PathError](err); is {
		return folderError(path)
	}
	return api.New(api.InvalidRequest, "Invalid multipart body.").WithCause(err)
}

// check returns how long the file is kept.
func (in *form) check() (lifetime time.Duration, err error) {
	purpose, known := in.fields["purpose"]
	switch {
	case in.size < 0:
		return 0, api.New(api.MissingRequiredParameter, "The form must have a file in 'file'.").WithParam("file")
	case in.size == 0:
		return 0, api.New(api.InvalidRequest, "The file is empty.").WithParam("file")
	case !known:
		return 0, api.New(api.MissingRequiredParameter, "Parameter 'purpose' is required.").WithParam("purpose")
	case purpose != "batch":
		return 0, api.New(api.InvalidType, "'purpose' must be batch.").WithParam("purpose")
	}
	text, given := in.fields["expires_after[seconds]"]
	if !given {
		return retention, nil
	}
	seconds, _ := strconv.ParseInt(text, 10, 64)
	return lifetimeOf("created_at", in.fields["expires_after[anchor]"], seconds, "expires_after")
}

// lifetimeOf checks how long a client wants to keep a file.
func lifetimeOf(wantAnchor, anchor string, seconds int64, param string) (time.Duration, error) {
	if anchor != wantAnchor || seconds < int64(minLifetime/time.Second) || seconds > int64(retention/time.Second) {
		return 0, api.Newf(api.InvalidType, "'%s' must have the anchor %s and from %.0f to %.0f seconds.", param, wantAnchor, minLifetime.Seconds(), retention.Seconds()).WithParam(param)
	}
	return time.Duration(seconds) * time.Second, nil
}

// bounded writes a file as long as the folder has room.
type bounded struct {
	s *Service
	f *os.File
}

// Write implements io.Writer.
func (b bounded) Write(p []byte) (int, error) {
	if err := b.s.reserve(len(p)); err != nil {
		return 0, err
	}
	n, err := b.f.Write(p)
	b.s.release(int64(len(p) - n))
	return n, err
}

// FileList is GET /files.
func (s *Service) FileList(r *web.Request) error {
	purpose := r.Query("purpose")
	return page(s, r, listing{filePrefix, "", "after", maxFiles, maxFiles}, func(tenant, id string) (f File, ok bool, err error) {
		err = s.read(tenant, id, &f)
		return f, !f.expired(time.Now()) && (purpose == "" || f.Purpose == purpose), err
	})
}

// file returns a file of the request's key.
func (s *Service) file(r *web.Request, id string) (tenant string, f File, err error) {
	tenant = s.cfg.Tenant(&r.Key)
	if !isID(filePrefix, id) {
		return "", f, errNoFile()
	}
	if err = s.read(tenant, id, &f); errors.Is(err, fs.ErrNotExist) || err == nil && f.expired(time.Now()) {
		err = errNoFile()
	}
	return tenant, f, err
}

func errNoFile() *api.Error {
	return api.New(api.FileNotFound, "No file has that id: it expired or was deleted, or belongs to another key.")
}

// FileGet is GET /files/{id}.
func (s *Service) FileGet(r *web.Request) error {
	_, f, err := s.file(r, r.Match.ID)
	if err != nil {
		return err
	}
	return r.Reply(200, f)
}

// FileContent is GET /files/{id}/content.
func (s *Service) FileContent(r *web.Request) error {
	tenant, f, err := s.file(r, r.Match.ID)
	if err != nil {
		return err
	}
	data, err := os.Open(s.path(tenant, f.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return errNoFile()
	} else if err != nil {
		return err
	}
	r.CountResponse(200)
	r.Ctx.SetContentType("application/octet-stream")
	r.Ctx.Response.SetBodyStream(data, int(f.Bytes)) // closes it
	return nil
}

// deleted is the response to a deletion.
type deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// FileDelete is DELETE /files/{id}.
func (s *Service) FileDelete(r *web.Request) error {
	tenant, f, err := s.file(r, r.Match.ID)
	if err != nil {
		return err
	}
	inUse, err := s.inUse(tenant)
	if err != nil {
		return err
	}
	if inUse[f.ID] {
		return api.New(api.FileInUse, "A batch that has not ended reads this file; cancel the batch first.")
	}
	if err := s.removeFile(tenant, f.ID); err != nil {
		return err
	}
	return r.Reply(200, deleted{f.ID, "file", true})
}

// removeFile removes a file, its record first.
func (s *Service) removeFile(tenant, id string) error {
	return errors.Join(s.remove(s.path(tenant, id+record)), s.remove(s.path(tenant, id)))
}
