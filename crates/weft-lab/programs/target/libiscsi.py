"""libiscsi's calls that the other programs here make, on an initiator of their own."""

import ctypes

BLOCK = 512
GOOD = 0

_library = ctypes.CDLL("libiscsi.so.7")


def _function(name, result, *arguments):
    function = getattr(_library, name)
    function.restype, function.argtypes = result, arguments
    return function


_POINTER, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
_create = _function("iscsi_create_context", _POINTER, _TEXT)
_destroy = _function("iscsi_destroy_context", _INT, _POINTER)
_set_target = _function("iscsi_set_targetname", _INT, _POINTER, _TEXT)
_set_type = _function("iscsi_set_session_type", _INT, _POINTER, _INT)
_stay_broken = _function("iscsi_set_noautoreconnect", None, _POINTER, _INT)
_set_isid = _function("iscsi_set_isid_en", _INT, _POINTER, _U32, _U32)
_set_timeout = _function("iscsi_set_timeout", _INT, _POINTER, _INT)
_connect = _function("iscsi_full_connect_sync", _INT, _POINTER, _TEXT, _INT)
_logout = _function("iscsi_logout_sync", _INT, _POINTER)
_error = _function("iscsi_get_error", _TEXT, _POINTER)
_write = _function("iscsi_write10_sync", _POINTER, _POINTER, _INT, _U32, _TEXT, _U32, *[_INT] * 6)
_flush = _function("iscsi_synchronizecache10_sync", _POINTER, _POINTER, _INT, _INT, _INT, _INT, _INT)
_task = _function("scsi_create_task", _POINTER, _INT, _TEXT, _INT, _INT)
_read_cdb = _function("scsi_cdb_read10", _POINTER, _U32, _U32, *[_INT] * 6)
_receive_to = _function("scsi_task_add_data_in_buffer", _INT, _POINTER, _INT, _POINTER)
_run = _function("iscsi_scsi_command_sync", _POINTER, _POINTER, _INT, _POINTER, _POINTER)
_free = _function("scsi_free_scsi_task", None, _POINTER)

_NORMAL_SESSION = 2
_TO_TARGET = 2
# Seconds after which a command counts as lost.
_TIMEOUT = 240


class Failed(Exception):
    """The unit has not done what it was asked for, or its target is gone."""

    def __init__(self, text, status=None):
        super().__init__(text)
        self.status = status


class _Data(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("data", _TEXT)]


class Initiator:
    """A session with a target, whose unit `lun` is used. It does not connect again."""

    def __init__(self, name, portal, target, lun):
        self._context, self.lun = _create(name.encode()), lun
        _set_target(self._context, target.encode())
        _set_type(self._context, _NORMAL_SESSION)
        # The same initiator has the same identity in every session.
        _set_isid(self._context, 1, 1)
        _stay_broken(self._context, 1)
        _set_timeout(self._context, _TIMEOUT)
        if _connect(self._context, portal.encode(), lun) != 0:
            raise Failed(self._close())

    def _close(self):
        error = _error(self._context).decode()
        _destroy(self._context)
        self._context = None
        return error

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            _logout(self._context)
        self._close()

    def _check(self, task):
        # The status is the first member of a task.
        status = ctypes.c_int.from_address(task).value if task else None
        if task:
            _free(task)
        if status != GOOD:
            raise Failed(f"status {status}: {_error(self._context).decode()}", status)

    def write(self, block, data):
        """Writes whole blocks."""
        flags = [0] * 5
        self._check(_write(self._context, self.lun, block, data, len(data), BLOCK, *flags))

    def flush(self):
        """Makes everything safe that was written."""
        self._check(_flush(self._context, self.lun, 0, 0, 0, 0))

    def send(self, cdb, data):
        """Runs a command that sends data."""
        task = _task(len(cdb), cdb, _TO_TARGET, len(data))
        self._check(_run(self._context, self.lun, task, ctypes.byref(_Data(len(data), data))))

    def read(self, block, length):
        """Returns the bytes of whole blocks."""
        buffer = ctypes.create_string_buffer(length)
        task = _read_cdb(block, length, BLOCK, 0, 0, 0, 0, 0)
        _receive_to(task, length, buffer)
        done = _run(self._context, self.lun, task, None)
        if not done:
            raise Failed(_error(self._context).decode())
        self._check(done)
        return buffer.raw
