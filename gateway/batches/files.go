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
	u, err := s.newUpload(r)
	if err != nil {
		return err
	}
	defer u.drop()
	form, err := readForm(multipart.NewReader(body, boundary), u)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, body); err != nil { // so that the connection can be used again
		return err
	}
	lifetime, err := form.check(u.size)
	if err != nil {
		return err
	}
	file, err := u.keep(form.filename, time.Now(), lifetime)
	if err != nil {
		return err
	}
	return r.Reply(200, file)
}

// upload is what a key uploads, until it is kept or dropped.
type upload struct {
	*Service
	tenant string
	file   *os.File
	size   int64
}

func (s *Service) newUpload(r *web.Request) (u *upload, err error) {
	u = &upload{Service: s, tenant: s.cfg.Tenant(&r.Key)}
	if err := os.MkdirAll(s.path(u.tenant, ""), 0o700); err != nil {
		return nil, folderError(err)
	}
	ids, err := s.ids(u.tenant, filePrefix)
	if err != nil {
		return nil, err
	} else if len(ids) >= maxFiles {
		return nil, api.Newf(api.DiskFull, "This key has %d files; delete some first.", maxFiles)
	}
	u.file, err = os.CreateTemp(s.path(u.tenant, ""), uploadPrefix)
	return u, folderError(err)
}

// Write implements io.Writer, as long as the folder has room.
func (u *upload) Write(p []byte) (int, error) {
	if err := u.reserve(len(p)); err != nil {
		return 0, err
	}
	n, err := u.file.Write(p)
	u.size += int64(n)
	u.release(int64(len(p) - n))
	return n, err
}

// keep makes the upload a file of the key.
func (u *upload) keep(name string, now time.Time, lifetime time.Duration) (File, error) {
	f := newFile(newID(filePrefix, now), "batch", name, u.size, now, lifetime)
	err := u.file.Sync()
	if err == nil {
		err = os.Rename(u.file.Name(), u.path(u.tenant, f.ID))
	}
	if err == nil {
		err = u.write(u.tenant, f.ID, f)
	}
	return f, folderError(err)
}

// drop removes the upload, unless it was kept.
func (u *upload) drop() {
	_ = u.file.Close()
	_ = u.remove(u.file.Name())
}

// form is what comes with a file.
type form struct {
	fields   map[string]string
	filename string
	hasFile  bool
}

// readForm reads a form, whose file goes to u.
func readForm(parts *multipart.Reader, u *upload) (form, error) {
	in := form{fields: map[string]string{}}
	for range maxParts {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return in, nil
		} else if err != nil {
			return in, formError(err)
		}
		name := part.FormName()
		switch {
		case name == "file" && in.hasFile:
			return in, api.New(api.InvalidRequest, "Send one file at a time.").WithParam("file")
		case name == "file":
			in.hasFile, in.filename = true, strings.ToValidUTF8(term.Clip(part.FileName(), 200), "\uFFFD")
			if _, err := io.Copy(u, part); err != nil {
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
func (in *form) check(size int64) (lifetime time.Duration, err error) {
	purpose, known := in.fields["purpose"]
	switch {
	case !in.hasFile:
		return 0, api.New(api.MissingRequiredParameter, "The form must have a file in 'file'.").WithParam("file")
	case size == 0:
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
	return lifetimeOf(in.fields["expires_after[anchor]"], seconds, "expires_after")
}

// lifetimeOf checks how long a client wants to keep a file.
func lifetimeOf(anchor string, seconds int64, param string) (time.Duration, error) {
	if anchor != "created_at" || seconds < int64(minLifetime/time.Second) || seconds > int64(retention/time.Second) {
		return 0, api.Newf(api.InvalidType, "'%s' must have the anchor created_at and from %.0f to %.0f seconds.", param, minLifetime.Seconds(), retention.Seconds()).WithParam(param)
	}
	return time.Duration(seconds) * time.Second, nil
}

// FileList is GET /files.
func (s *Service) FileList(r *web.Request) error {
	purpose := r.Query("purpose")
	return s.page(r, listing{filePrefix, "", "after", maxFiles, maxFiles}, func(tenant, id string) (any, error) {
		var f File
		if err := s.read(tenant, id, &f); err != nil || f.expired(time.Now()) || purpose != "" && f.Purpose != purpose {
			return nil, err
		}
		return f, nil
	})
}

// file returns a file of the request's key, whose tenant has its folder.
func (s *Service) file(r *web.Request, id string) (tenant string, f File, err error) {
	if tenant = s.cfg.Tenant(&r.Key); isID(filePrefix, id) {
		err = s.read(tenant, id, &f)
	}
	if ignoreMissing(err) == nil && f.expired(time.Now()) { // as one that is not there
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
	return r.Reply(200, map[string]any{"id": f.ID, "object": "file", "deleted": true})
}

// removeFile removes a file, its record first.
func (s *Service) removeFile(tenant, id string) error {
	return errors.Join(s.remove(s.path(tenant, id+record)), s.remove(s.path(tenant, id)))
}
