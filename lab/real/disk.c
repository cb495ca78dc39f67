/* A disk that misbehaves, and a clock that is wrong, for programs that are started with LD_PRELOAD=disk.so.
 *
 * LAB_CLOCK         a file of eight bytes: how many seconds the clock is ahead (libfaketime breaks Python's sleep)
 * LAB_DISK_ROOT     what lies below this folder is on that disk
 * LAB_DISK_CONTROL  a file of two bytes: the first is '1' while syncs stall, the second while the disk is full
 * LAB_DISK_LOG      a file to which every change below the root is appended, for the power-cut model (power.py)
 *
 * A change is logged after it was made, and a sync before it begins and after it has returned: it covers what was
 * logged before it began. So the log never calls something durable that was not. One record is one append, which the
 * kernel does not interleave with others.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static const char *root, *log_path;
static volatile char *control;
static volatile int64_t *ahead;

static void *map_file(const char *path, size_t size) {
    int fd = path ? REAL(open)(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return NULL;
    void *at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

__attribute__((constructor)) static void begin(void) {
    root = getenv("LAB_DISK_ROOT");
    log_path = getenv("LAB_DISK_LOG");
    control = map_file(getenv("LAB_DISK_CONTROL"), 2);
    ahead = map_file(getenv("LAB_CLOCK"), sizeof *ahead);
}

/* The clock. By system calls: looking a function up may need the time itself. */

int clock_gettime(clockid_t which, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, which, now);
    if (!result && ahead && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = (int)syscall(SYS_gettimeofday, now, zone);
    if (!result && ahead) now->tv_sec += *ahead;
    return result;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}

static int is_below(const char *path) {
    size_t n = root ? strlen(root) : 0;
    return n && !strncmp(path, root, n) && (path[n] == '/' || !path[n]);
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n < 0) return 0;
    path[n] = 0;
    char *gone = strstr(path, " (deleted)");
    if (gone) *gone = 0;
    return is_below(path);
}

static int path_at(int folder, const char *name, char *path) {
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char above[PATH_MAX];
        if (folder == AT_FDCWD ? !getcwd(above, sizeof above) : (path_of(folder, above), 0)) return 0;
        snprintf(path, PATH_MAX, "%.2000s/%.2000s", above, name);
    }
    return is_below(path);
}

/* Records: kind, inode, number, length of the path, length of the data; then both. */
struct __attribute__((packed)) head { char kind; uint64_t inode; uint64_t number; uint32_t path; uint32_t data; };

static void append(char kind, uint64_t inode, uint64_t number, const char *path, const struct iovec *data, int count) {
    struct iovec parts[count + 2];
    struct head head = {kind, inode, number, (uint32_t)strlen(path), 0};
    parts[0] = (struct iovec){&head, sizeof head};
    parts[1] = (struct iovec){(void *)path, head.path};
    for (int i = 0; i < count; i++) { parts[i + 2] = data[i]; head.data += (uint32_t)data[i].iov_len; }
    int fd = REAL(open)(log_path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t whole = (ssize_t)(sizeof head + head.path + head.data);
    if (REAL(writev)(fd, parts, count + 2) != whole) abort();
    close(fd);
}

static uint64_t inode_of(int fd, mode_t *mode) {
    struct stat found;
    if (fstat(fd, &found)) return 0;
    *mode = found.st_mode;
    return found.st_ino;
}

static void log_fd(char kind, int fd, uint64_t number, const struct iovec *data, int count) {
    char path[PATH_MAX];
    mode_t mode = 0;
    if (!log_path || !path_of(fd, path)) return;
    int kept = errno;
    uint64_t inode = inode_of(fd, &mode);
    if (S_ISREG(mode) || S_ISDIR(mode)) append(kind, inode, number, path, data, count);
    errno = kept;
}

static void log_name(char kind, int folder, const char *name, uint64_t inode, uint64_t number) {
    char path[PATH_MAX];
    int kept = errno;
    if (log_path && path_at(folder, name, path)) append(kind, inode, number, path, NULL, 0);
    errno = kept;
}

static int is_full(int fd) {
    char path[PATH_MAX];
    mode_t mode = 0;
    if (!control || control[1] != '1') return 0;
    inode_of(fd, &mode);
    if (!S_ISREG(mode) || !path_of(fd, path)) return 0;
    errno = ENOSPC;
    return 1;
}

static void stall(void) { while (control && control[0] == '1') usleep(5000); }

/* Syncs. */

static int sync_fd(int fd, int (*sync)(int)) {
    stall();
    uint64_t who = (uint64_t)gettid();
    log_fd('b', fd, who, NULL, 0); /* what is written from here on, by others, may not be in it */
    int result = sync(fd);
    if (!result) log_fd('s', fd, who, NULL, 0);
    return result;
}

int fsync(int fd) { return sync_fd(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_fd(fd, REAL(fdatasync)); }

/* Writes. */

static ssize_t log_write(int fd, uint64_t at, const struct iovec *data, int count, ssize_t result) {
    if (result <= 0 || !log_path) return result;
    struct iovec parts[count];
    size_t left = (size_t)result;
    int used = 0;
    for (; used < count && left; used++) {
        parts[used] = data[used];
        if (parts[used].iov_len > left) parts[used].iov_len = left;
        left -= parts[used].iov_len;
    }
    log_fd('w', fd, at, parts, used);
    return result;
}

static uint64_t position(int fd) { return log_path ? (uint64_t)lseek(fd, 0, SEEK_CUR) : 0; }

ssize_t write(int fd, const void *data, size_t size) {
    if (is_full(fd)) return -1;
    ssize_t result = REAL(write)(fd, data, size);
    struct iovec part = {(void *)data, size};
    if (result > 0 && log_path) {
        int kept = errno;
        uint64_t at = position(fd) - (uint64_t)result;
        errno = kept;
        return log_write(fd, at, &part, 1, result);
    }
    return result;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (is_full(fd)) return -1;
    ssize_t result = REAL(writev)(fd, parts, count);
    if (result > 0 && log_path) {
        int kept = errno;
        uint64_t at = position(fd) - (uint64_t)result;
        errno = kept;
        return log_write(fd, at, parts, count, result);
    }
    return result;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (is_full(fd)) return -1;
    struct iovec part = {(void *)data, size};
    return log_write(fd, (uint64_t)at, &part, 1, REAL(pwrite64)(fd, data, size, at));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    if (is_full(fd)) return -1;
    return log_write(fd, (uint64_t)at, parts, count, REAL(pwritev64)(fd, parts, count, at));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return pwritev64(fd, parts, count, at); }

int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return is_full(fd) ? ENOSPC : REAL(posix_fallocate64)(fd, at, size);
}

int posix_fallocate(int fd, off_t at, off_t size) { return posix_fallocate64(fd, at, size); }

int ftruncate64(int fd, off64_t size) {
    int result = REAL(ftruncate64)(fd, size);
    if (!result) log_fd('t', fd, (uint64_t)size, NULL, 0);
    return result;
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

/* Names. */

static int open_at(int folder, const char *name, int flags, mode_t mode) {
    struct stat before;
    int is_new = log_path && (flags & O_CREAT) && fstatat(folder, name, &before, AT_SYMLINK_NOFOLLOW);
    int fd = REAL(openat64)(folder, name, flags, mode);
    if (fd < 0 || !log_path) return fd;
    mode_t found = 0;
    int kept = errno;
    uint64_t inode = inode_of(fd, &found);
    if (is_new && S_ISREG(found)) log_name('c', folder, name, inode, found);
    else if (flags & O_TRUNC) log_fd('t', fd, 0, NULL, 0);
    errno = kept;
    return fd;
}

static mode_t mode_in(va_list rest, int flags) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}

#define OPEN(signature, folder) \
    int signature { va_list rest; va_start(rest, flags); mode_t mode = mode_in(rest, flags); va_end(rest); \
                    return open_at(folder, name, flags, mode); }

OPEN(open(const char *name, int flags, ...), AT_FDCWD)
OPEN(open64(const char *name, int flags, ...), AT_FDCWD)
OPEN(openat(int folder, const char *name, int flags, ...), folder)
OPEN(openat64(int folder, const char *name, int flags, ...), folder)

int linkat(int from, const char *old, int to, const char *name, int flags) {
    int result = REAL(linkat)(from, old, to, name, flags);
    struct stat found;
    if (!result && log_path && !fstatat(to, name, &found, AT_SYMLINK_NOFOLLOW)) log_name('l', to, name, found.st_ino, 0);
    return result;
}

int link(const char *old, const char *name) { return linkat(AT_FDCWD, old, AT_FDCWD, name, 0); }

int unlinkat(int folder, const char *name, int flags) {
    int result = REAL(unlinkat)(folder, name, flags);
    if (!result) log_name('u', folder, name, 0, 0);
    return result;
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t mode) {
    int result = REAL(mkdirat)(folder, name, mode);
    struct stat found;
    if (!result && log_path && !fstatat(folder, name, &found, 0)) log_name('m', folder, name, found.st_ino, found.st_mode);
    return result;
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int renameat2(int from, const char *old, int to, const char *name, unsigned flags) {
    int result = REAL(renameat2)(from, old, to, name, flags);
    struct stat found;
    if (!result && log_path && !fstatat(to, name, &found, AT_SYMLINK_NOFOLLOW)) {
        log_name('l', to, name, found.st_ino, 0);
        log_name('u', from, old, 0, 0);
    }
    return result;
}

int renameat(int from, const char *old, int to, const char *name) { return renameat2(from, old, to, name, 0); }
int rename(const char *old, const char *name) { return renameat2(AT_FDCWD, old, AT_FDCWD, name, 0); }

int fchmod(int fd, mode_t mode) {
    int result = REAL(fchmod)(fd, mode);
    if (!result) log_fd('p', fd, mode, NULL, 0);
    return result;
}

/* What the model does not know must not happen below the root. */

ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags) {
    char path[PATH_MAX];
    if (log_path && path_of(to, path)) abort();
    return is_full(to) ? -1 : REAL(copy_file_range)(from, a, to, b, size, flags);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    char path[PATH_MAX];
    if (log_path && path_of(to, path)) abort();
    return is_full(to) ? -1 : ((ssize_t (*)(int, int, off64_t *, size_t))real("sendfile64"))(to, from, at, size);
}

ssize_t sendfile(int to, int from, off_t *at, size_t size) { return sendfile64(to, from, at, size); }
