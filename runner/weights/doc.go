// Package weights fetches model files from a source into a folder on the host, whose size is limited.
//
// A location is where weights come from, hf:// or s3://. An entry is the folder that contains a location's files. A
// hold protects an entry from removal while an engine reads it.
//
//	.lock                      held by the process that owns the folder
//	.pulling/ENTRY/…           files of an unfinished pull; .progress says which ranges have arrived
//	ENTRY/.weights.json        what the entry holds and where it came from
//	ENTRY/…                    its files, under the names that their source gave them
//
// The modification time of an entry's folder is the time of its last use. Folders without a .weights.json are not the
// cache's and are left alone.
//
//   - An entry appears by one rename, after all its files were written, compared with their checksums and synced.
//   - One pull at a time fetches a location, and all callers wait for it. It continues when they leave. What has
//     arrived is kept for the next pull, even after a restart, unless space is needed.
//   - A pull reserves its space first. Entries without a hold are removed for it, the least recently used first. If
//     they are not enough, none is removed and the pull fails with ErrFull. A source that does not report a file's size
//     is read as one stream, for which space is made as data arrives.
//   - An entry is never compared with its source again. A change at the source needs a new name: another key or
//     revision.
//   - Neither errors nor logs contain a token, a signature or the query of a URL.
package weights
